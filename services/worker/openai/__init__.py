"""An engine that is an OpenAI endpoint elsewhere: vLLM, SGLang behind its gateway, or Headway."""
