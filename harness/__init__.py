"""Find how many concurrent requests a vLLM deployment holds, and say how sure that is."""

__all__ = ["__version__"]

__version__ = "0.1.0"
