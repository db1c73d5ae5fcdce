"""HTTP requests that trust no URL, name server or response. Read `client` first."""
