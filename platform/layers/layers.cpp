#include "platform/layers/layers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "platform/layers/fault.h"
#include "platform/layers/trace.h"
#include "platform/layers/validate.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "platform/loader/text.h"

namespace concord::layers {
namespace {

using loader::cat;

[[noreturn]] void refuse(const std::string& sentence) { throw Error(CONCORD_STATUS_INVALID_ARGUMENT, sentence); }

std::vector<FaultRule> fault_rules() {
  const auto text = loader::setting("fault");
  if (!text) refuse("CONCORD_LAYERS names 'fault', but CONCORD_FAULT is not set; " + fault_grammar());
  return parse_fault(*text);
}

// A layer never ends: calls may come from threads that outlive main.
template <class Layer, class... Arguments>
loader::Tables add_layer(const loader::Tables& next, Arguments&&... arguments) {
  return interpose(new Layer(next, std::forward<Arguments>(arguments)...));
}

struct KnownLayer {
  const char* name;
  void (*check)();
  loader::Tables (*wrap)(const loader::Tables& next);
};

constexpr KnownLayer kLayers[] = {
    {"validate", [] { validate_settings(); },
     [](const loader::Tables& next) { return add_layer<Validate>(next, validate_settings()); }},
    {"trace", [] { trace_file(); }, [](const loader::Tables& next) { return add_layer<Trace>(next, trace_file()); }},
    {"fault", [] { fault_rules(); }, [](const loader::Tables& next) { return add_layer<Fault>(next, fault_rules()); }},
};

const KnownLayer& find_layer(const std::string& name, const std::string& all) {
  std::vector<std::string> names;
  for (const KnownLayer& layer : kLayers) {
    if (name == layer.name) return layer;
    names.emplace_back(layer.name);
  }
  refuse(cat("CONCORD_LAYERS is '", all, "', but there is no layer '", name, "'; the layers are ",
             loader::join(names, ", ")));
}

// As written: the first is the outermost.
std::vector<const KnownLayer*> wanted_layers() {
  std::vector<const KnownLayer*> layers;
  const auto setting = loader::setting("layers");
  if (!setting) return layers;
  for (size_t begin = 0; begin <= setting->size();) {
    const size_t end = std::min(setting->find(',', begin), setting->size());
    const KnownLayer* layer = &find_layer(setting->substr(begin, end - begin), *setting);
    if (std::find(layers.begin(), layers.end(), layer) != layers.end()) {
      refuse(cat("CONCORD_LAYERS is '", *setting, "'; it names '", layer->name, "' twice"));
    }
    layers.push_back(layer);
    begin = end + 1;
  }
  return layers;
}

}  // namespace

void check_settings() {
  for (const KnownLayer* layer : wanted_layers()) layer->check();
}

loader::Tables wrap(const loader::Tables& tables) {
  loader::Tables result = tables;
  const std::vector<const KnownLayer*> layers = wanted_layers();
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) result = (*layer)->wrap(result);
  return result;
}

}  // namespace concord::layers
