"""The smart transfer protocol on the wire, without a network: messages, batches, and who says what next."""
