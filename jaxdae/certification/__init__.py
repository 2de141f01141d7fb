"""Whether gradients may be followed: both modes, differences, backends, and the runs behind."""
