"""The shared floor: checks, numerics, random numbers, collectives, files and suggestions."""
