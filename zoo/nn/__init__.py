"""The parts of models; they know no optimizer, initialisation or reparameterisation."""
