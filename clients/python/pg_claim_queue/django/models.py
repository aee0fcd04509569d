"""None: post_migrate is sent for applications that have this module only."""
