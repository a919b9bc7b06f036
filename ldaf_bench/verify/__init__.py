"""verify: certificates checked again from their artifacts, along a slow dense path in float64."""
