// A shared library that is no plugin.
extern "C" __attribute__((visibility("default"))) int concord_plugin_close() { return 0; }
