"""A GAN as a package, run as `python -m gan_package.train`."""
