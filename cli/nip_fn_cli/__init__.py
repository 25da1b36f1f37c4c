"""The commands: parse, wire adapters into the core, print."""
