#include "core/parallel/shard_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Address = std::pair<std::string, int64_t>;  // tensor and index of an element

constexpr ShardAxis kTp = ShardAxis::tp;

ShardPlace at(int64_t tp_count, int64_t tp, int64_t ep_count = 1, int64_t ep = 0) {
  return {{{{tp_count, tp}, {tp_count, tp}, {ep_count, ep}}}};
}

ShardSpec column(int64_t rows, int64_t columns) { return {.name = "w", .dims = {{rows, kTp}, {columns, {}}}}; }
ShardSpec row(int64_t rows, int64_t columns) { return {.name = "w", .dims = {{rows, {}}, {columns, kTp}}}; }

template <class Body>
std::string refused(Body body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

// The definition, element by element: returns the address of each element of the rank's tensor; nullopt for padding.
std::vector<std::optional<Address>> addresses(const ShardSpec& spec, const ShardPlace& place) {
  const std::vector<int64_t> shape = local_shape(spec, place);
  int64_t total = 1;
  for (const int64_t size : shape) total *= size;
  std::vector<std::optional<Address>> result;
  for (int64_t element = 0; element < total; ++element) {
    std::vector<int64_t> index(shape.size());
    int64_t rest = element;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    std::string name = spec.name;
    std::vector<int64_t> sizes;
    bool padding = false;
    for (size_t d = 0; d < shape.size(); ++d) {
      const auto& dim = spec.dims[d];
      const int64_t parts = dim.cut ? place[*dim.cut].count : 1;
      const int64_t mine = dim.cut ? place[*dim.cut].index : 0;
      sizes.push_back(dim.size);
      if (!spec.pieces.empty() && d == spec.fused_dim) {
        int64_t before = 0;  // size of the previous pieces in their common tensor
        for (const auto& piece : spec.pieces) {
          if (index[d] < piece.size / parts) {
            if (!spec.joined) name = piece.name;
            if (!spec.joined) sizes.back() = 0;
            for (const auto& each : spec.pieces)
              sizes.back() += !spec.joined && each.name == piece.name ? each.size : 0;
            for (const auto* each = &piece; each != spec.pieces.data(); --each) {
              before += spec.joined || each[-1].name == piece.name ? each[-1].size : 0;
            }
            index[d] += mine * (piece.size / parts) + before;
            break;
          }
          index[d] -= piece.size / parts;
        }
      } else {
        index[d] += mine * (std::max(dim.size, dim.padded) / parts);
        padding |= index[d] >= dim.size;
      }
    }
    int64_t global = 0;
    for (size_t d = spec.stacked ? 1 : 0; d < shape.size(); ++d) global = global * sizes[d] + index[d];
    if (spec.stacked) name.replace(name.find("{}"), 2, std::to_string(index[0]));
    result.push_back(padding ? std::nullopt : std::optional(Address(name, global)));
  }
  return result;
}

std::vector<std::optional<Address>> expand(const ShardSpec& spec, const ShardPlace& place) {
  int64_t total = 1;
  for (const int64_t size : local_shape(spec, place)) total *= size;
  std::vector<std::optional<Address>> result(static_cast<size_t>(total));
  for (const ShardRun& run : shard_runs(spec, place)) {
    for (int64_t i = 0; i < run.count; ++i) {
      auto& element = result.at(static_cast<size_t>(run.local + i));
      EXPECT_FALSE(element) << "written twice";
      element = Address(run.tensor, run.offset + i / run.run_length * run.run_stride + i % run.run_length);
    }
  }
  return result;
}

TEST(ShardRuns, OfAColumnCutIsOneBlock) {
  EXPECT_THAT(local_shape(column(8, 6), at(4, 1)), ElementsAre(2, 6));
  EXPECT_THAT(shard_runs(column(8, 6), at(4, 1)), ElementsAre(ShardRun{"w", 0, 12, 12, 12, 12}));
}

TEST(ShardRuns, OfARowCutAreTheRows) {
  EXPECT_THAT(local_shape(row(8, 6), at(2, 1)), ElementsAre(8, 3));
  EXPECT_THAT(shard_runs(row(8, 6), at(2, 1)), ElementsAre(ShardRun{"w", 0, 24, 3, 3, 6}));
}

TEST(ShardRuns, OfFusedPiecesHaveTheirOwnTensors) {
  ShardSpec qkv = column(16, 4);
  qkv.pieces = {{"q", 8}, {"k", 4}, {"v", 4}};
  EXPECT_THAT(local_shape(qkv, at(2, 1)), ElementsAre(8, 4));
  EXPECT_THAT(shard_runs(qkv, at(2, 1)), ElementsAre(ShardRun{"q", 0, 16, 16, 16, 16}, ShardRun{"k", 16, 8, 8, 8, 8},
                                                     ShardRun{"v", 24, 8, 8, 8, 8}));
}

TEST(ShardRuns, OfJoinedPiecesAreInOneTensor) {
  ShardSpec qkv = column(16, 4);
  qkv.pieces = {{"q", 8}, {"k", 4}, {"v", 4}};
  qkv.joined = true;
  EXPECT_THAT(shard_runs(qkv, at(2, 1)), ElementsAre(ShardRun{"w", 0, 16, 16, 16, 16}, ShardRun{"w", 16, 8, 40, 8, 8},
                                                     ShardRun{"w", 24, 8, 56, 8, 8}));
}

TEST(ShardRuns, OfConsecutivePiecesOfOneNameAreInOneTensor) {
  ShardSpec projections = column(24, 4);
  projections.pieces = {{"qk", 8}, {"qk", 8}, {"z", 8}};
  EXPECT_THAT(shard_runs(projections, at(2, 1)),
              ElementsAre(ShardRun{"qk", 0, 16, 16, 16, 16}, ShardRun{"qk", 16, 16, 48, 16, 16},
                          ShardRun{"z", 32, 16, 16, 16, 16}));
}

TEST(ShardRuns, OfAStackAreNumbered) {
  const ShardSpec experts{.name = "experts.{}.down", .dims = {{4, ShardAxis::ep}, {6, {}}, {8, kTp}}, .stacked = true};
  EXPECT_THAT(shard_runs(experts, at(2, 1, 2, 1)),
              ElementsAre(ShardRun{"experts.2.down", 0, 24, 4, 4, 8}, ShardRun{"experts.3.down", 24, 24, 4, 4, 8}));
}

TEST(ShardRuns, LeaveOutThePaddingOfTheVocabulary) {
  const ShardSpec embedding{.name = "e", .dims = {{10, kTp, 16}, {3, {}}}};
  EXPECT_THAT(local_shape(embedding, at(4, 2)), ElementsAre(4, 3));
  EXPECT_THAT(shard_runs(embedding, at(4, 2)), ElementsAre(ShardRun{"e", 0, 6, 24, 6, 6}));
  EXPECT_THAT(shard_runs(embedding, at(4, 3)), ElementsAre());
}

TEST(ShardRuns, AreTheDefinitionForRandomParameters) {
  std::mt19937_64 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 400; ++trial) {
    ShardSpec spec{.name = "w{}", .dims = {}};
    const int64_t tp = pick(1, 3);
    const int64_t ep = pick(1, 2);
    const size_t rank = static_cast<size_t>(pick(1, 4));
    for (size_t d = 0; d < rank; ++d) {
      const bool cut = pick(0, 1) == 1;
      const ShardAxis axis = pick(0, 1) == 1 ? ShardAxis::ep : kTp;
      const int64_t parts = axis == kTp ? tp : ep;
      spec.dims.push_back({cut ? parts * pick(1, 3) : pick(1, 4), cut ? std::optional(axis) : std::nullopt});
      if (pick(0, 4) == 0)
        spec.dims.back().padded = (spec.dims.back().size + parts * pick(1, 2) + parts - 1) / parts * parts;
    }
    spec.stacked = rank > 1 && spec.dims[0].padded == 0 && pick(0, 1) == 1;
    spec.fused_dim = static_cast<size_t>(pick(spec.stacked ? 1 : 0, static_cast<int64_t>(rank) - 1));
    ShardSpec::Dim& fused = spec.dims[spec.fused_dim];
    if (pick(0, 1) == 1) {
      fused.padded = 0;
      const int64_t unit = fused.cut ? (*fused.cut == kTp ? tp : ep) : 1;
      spec.pieces = {{"a{}", unit * pick(1, 2)}, {"b{}", unit * pick(1, 3)}, {"c{}", unit}};
      fused.size = spec.pieces[0].size + spec.pieces[1].size + spec.pieces[2].size;
      spec.joined = pick(0, 1) == 1;
      if (pick(0, 1) == 1) spec.pieces[1].name = spec.pieces[pick(0, 1) == 1 ? 0 : 2].name;
    }
    for (int64_t t = 0; t < tp; ++t) {
      for (int64_t e = 0; e < ep; ++e) {
        const ShardPlace place = at(tp, t, ep, e);
        ASSERT_EQ(expand(spec, place), addresses(spec, place)) << "trial " << trial;
      }
    }
  }
}

TEST(ShardRuns, OfAllRanksCoverEveryTensorOnce) {
  ShardSpec gate_up{.name = "x", .dims = {{4, ShardAxis::ep}, {12, kTp}, {5, {}}}, .fused_dim = 1, .stacked = true};
  gate_up.pieces = {{"experts.{}.gate", 6}, {"experts.{}.up", 6}};
  std::map<Address, int> seen;
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t e = 0; e < 2; ++e) {
      for (const auto& address : expand(gate_up, at(3, t, 2, e))) ++seen[address.value()];
    }
  }
  EXPECT_EQ(seen.size(), 4u * 12u * 5u);
  for (const auto& [address, times] : seen) EXPECT_EQ(times, 1) << address.first << " " << address.second;
}

TEST(ShardPlaceOf, ARankComesFromTheLayout) {
  const RankLayout layout({.world = 16, .tensor = 4, .pipeline = 2, .expert = 4, .expert_tensor = 2});
  const ShardPlace place = shard_place(layout, 13);
  const RankCoordinates expected = layout.coordinates(13);
  EXPECT_EQ(place[kTp].count, 4);
  EXPECT_EQ(place[kTp].index, expected.tp);
  EXPECT_EQ(place[ShardAxis::etp].count, 2);
  EXPECT_EQ(place[ShardAxis::etp].index, expected.etp);
  EXPECT_EQ(place[ShardAxis::ep].count, 4);
  EXPECT_EQ(place[ShardAxis::ep].index, expected.ep);
}

TEST(ShardSpec, ThatCannotBeMeantIsRefusedWithItsNumbers) {
  const auto shape = [](const ShardSpec& spec) { return refused([&] { local_shape(spec, at(4, 0)); }); };
  EXPECT_THAT(shape(column(10, 6)),
              HasSubstr("parameter w: dimension 0 of 10 cannot be split into 4 equal parts; choose a tp"));
  ShardSpec qkv = column(16, 4);
  qkv.pieces = {{"q", 8}, {"k", 6}, {"v", 2}};
  EXPECT_THAT(shape(qkv), HasSubstr("piece k of 6 cannot be split into 4"));
  qkv.pieces = {{"q", 8}, {"k", 4}};
  EXPECT_THAT(shape(qkv), HasSubstr("pieces add up to 12, but dimension 0 has 16"));
  qkv.pieces = {{"q", 16}, {"k", 0}};
  EXPECT_THAT(shape(qkv), HasSubstr("piece k has size 0"));
  EXPECT_THAT(shape({.name = "w", .dims = {}}), HasSubstr("no dimension"));
  EXPECT_THAT(shape({.name = "w", .dims = {{0, {}}}}), HasSubstr("has size 0"));
  EXPECT_THAT(shape({.name = "w", .dims = {{8, {}, 4}}}), HasSubstr("padded to 4"));
  EXPECT_THAT(shape({.name = "w", .dims = {{8, {}, 12}}, .pieces = {{"a", 8}}}), HasSubstr("cannot be padded too"));
  EXPECT_THAT(shape({.name = "w", .dims = {{8, {}}}, .fused_dim = 1}), HasSubstr("fused_dim is 1 of 1"));
  EXPECT_THAT(shape({.name = "w", .dims = {{8, {}}}, .stacked = true}),
              HasSubstr("a stack needs its own first dimension"));
  EXPECT_THAT(refused([] { shard_runs({.name = "w", .dims = {{2, {}}, {2, {}}}, .stacked = true}, at(1, 0)); }),
              HasSubstr("no {}"));
}

}  // namespace
}  // namespace concord
