"""What runs inside a vLLM engine's own Python: the standard library and vllm alone, relative imports only.

The folder is copied as it stands into a kit (`prefixscope.kit`), so nothing here may import the rest of prefixscope.
"""
