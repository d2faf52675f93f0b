"""Blocks of the settings that have grown a file of their own; the others are in `tocsin.project.setting_blocks`."""
