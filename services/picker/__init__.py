"""The picker's shell: Envoy's external processing in front of endpoints that it watches."""
