"""How far the best learning rate drifts over widths, depths and horizons."""
