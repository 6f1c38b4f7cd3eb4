"""Training: one loop for every strategy. Importing this package alone does not import TensorFlow."""
