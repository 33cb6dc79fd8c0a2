"""The daemon: composition, collection, probing, the page and the API."""
