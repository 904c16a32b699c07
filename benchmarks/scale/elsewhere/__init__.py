"""The study on a machine for minutes: no network, another Python, and a GPU that many workers share."""
