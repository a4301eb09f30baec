"""What `guided-plugin doctor` looks at: one section a file, which returns findings and raises nothing."""
