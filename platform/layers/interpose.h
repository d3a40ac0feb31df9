// How a layer gets between host and plugin: a table of functions that call the layer, whose |self| is the layer, and
// which calls the table below. Written once for all slots.
#pragma once

#include "platform/loader/host.h"
#include "platform/loader/slots.h"
#include "platform/sdk/failure.hpp"

namespace concord::layers {

// Runs |body| and converts whatever it throws into a status and a message. Layers check arguments with
// platform/sdk/checks.hpp, which throws sdk::Failure.
template <class Body>
concord_status fence(Body&& body) noexcept {
  return sdk::fence(body, [](const char* message) noexcept { loader::set_error_detail(message); });
}

// A layer has:
//   const loader::Tables& next() const;                               the tables below
//   template <auto Member, class Next, class... Arguments>
//   concord_status around(const Next& next, Arguments... arguments);  next() makes the call below with these arguments
template <class Layer, auto Member, class Type = decltype(Member)>
struct Interposed;

template <class Layer, auto Member, class Table, class... Arguments>
struct Interposed<Layer, Member, concord_status (*Table::*)(void*, Arguments...)> {
  static concord_status call(void* self, Arguments... arguments) noexcept {
    auto* layer = static_cast<Layer*>(self);
    const Table& table = layer->next().template get<Table>();
    const auto next = [&] { return (table.*Member)(table.self, arguments...); };
    return fence([&] { return layer->template around<Member>(next, arguments...); });
  }
};

// Tables that lead to |layer|, which must live until the process ends.
template <class Layer>
loader::Tables interpose(Layer* layer) {
  loader::Tables result = layer->next();
  result.for_each([layer]<class Table>(Table& table) {
    table.header = {sizeof(Table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR};
    table.self = layer;
    loader::TableTraits<Table>::for_each_slot(
        [&]<auto Member>(loader::Slot<Member>) { table.*Member = &Interposed<Layer, Member>::call; });
  });
  return result;
}

}  // namespace concord::layers
