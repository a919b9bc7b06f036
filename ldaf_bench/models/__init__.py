"""Networks: backbones that turn images into vectors, and the classifiers that end in a flow or in a plain head."""
