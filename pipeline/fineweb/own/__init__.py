"""Documents of your own, built by the code that builds FineWeb-Edu."""
