"""A Django project for test_django.py. RL_URL is the server, RL_OPTIONS the rest of REDIS_RL as JSON."""
