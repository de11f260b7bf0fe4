"""The model of how long a program takes."""
