// A shared library that is not a plugin.
extern "C" __attribute__((visibility("default"))) int concord_plugin_close() { return 0; }
