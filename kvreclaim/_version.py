"""The version, which reports and signatures carry."""

__version__ = "0.1.0"
