"""Loop programs: what backends that generate code share. Nothing here knows a device."""
