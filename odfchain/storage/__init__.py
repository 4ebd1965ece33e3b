"""Bytes in files, object stores and behind URLs: bounded, hashed, made durable."""
