"""The project's own tests use the plugin that users get."""

pytest_plugins = ["perdure.testing.plugin"]
