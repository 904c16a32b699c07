"""Campaigns against zoo: it is killed, starved and given damaged files and configurations, and must hold."""
