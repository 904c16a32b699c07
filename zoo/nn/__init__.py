"""The parts models are built from. They know no optimizer, initialisation or reparameterisation."""
