"""The workbench around the library: data, training, reports and the command line."""
