"""Blocks of the settings that have grown a file of their own; the others are in `tocsin.declare.setting_blocks`."""
