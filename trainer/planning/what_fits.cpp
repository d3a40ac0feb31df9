#include "trainer/planning/what_fits.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/arguments/arguments.h"
#include "trainer/planning/memory_fit.h"

namespace concord {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kHostGib = 112;  // what a machine with 128 GiB has left for a run

// A size by which devices are sold, and what their drivers report.
struct DeviceMemory {
  const char* name;
  double gib;
};
constexpr DeviceMemory kDevices[] = {
    {"16 GB", 15.6}, {"24 GB", 23.5}, {"48 GB", 47.4}, {"80 GB", 79.1}, {"141 GB", 139.7}};

struct Method {
  const char* name;
  std::vector<std::string> arguments;
};
const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"full", {}},
      {"LoRA", {"--finetuning_type", "lora", "--lora_rank", "16"}},
      {"QLoRA", {"--finetuning_type", "lora", "--lora_rank", "16", "--quantization_bit", "4"}}};
  return all;
}

constexpr const char* kIntroduction = R"(# What fits on my GPU

What one device can train, by its memory: the first of full training, LoRA and QLoRA that fits, with rows of 4,096
tokens in bf16 and 16,384 tokens per step. Each row is a command whose memory was planned by the program; the settings
after the batch are the cheapest with which it fits ([order](data-parallel.md#buffers-and-buckets)). The host has 128
GiB. Peaks are predictions without what the device's runtime takes for itself, for which 1 GiB and 3 % are left.

For another model, batch or device, in GiB:

    concord plan memory --fits 16,24,48,80 --model FOLDER --bf16 --seq_length 4096 --per_device_train_batch_size 4

This page is made by `trainer/planning/what_fits.cpp`; after a change write it again with

    CONCORD_WRITE_DOCS=1 build/tests/memory_plan_test --gtest_filter='WhatFits.*'
)";

std::vector<std::string> command_of(const Method& method) {
  std::vector<std::string> words = method.arguments;
  words.insert(words.end(), {"--bf16", "--seq_length", "4096", "--per_device_train_batch_size", "4"});
  return words;
}

std::optional<MemoryFit> fit_of(const PublishedModel& model, const Method& method, const DeviceMemory& device) {
  TrainingArguments arguments = parse_command_line(command_of(method)).arguments;
  arguments.model.config = config_text(model);
  return cheapest_fit(
      resolve_arguments(arguments, 1), 1,
      {.device = static_cast<int64_t>(device.gib * kGiB), .host = static_cast<int64_t>(kHostGib * kGiB)},
      /*more_ranks=*/false);
}

// The last value of an argument wins; this drops the earlier one.
std::string command_text(const PublishedModel& model, const Method& method, const MemoryFit& fit) {
  std::vector<std::string> words = command_of(method);
  for (const std::string& change : fit.changes) {
    const auto found = std::ranges::find(words, change);
    if (change.starts_with("--") && found != words.end()) words.erase(found, found + 2);
  }
  words.insert(words.end(), fit.changes.begin(), fit.changes.end());
  return fmt::format("concord train --model {} {}", model.name, to_text(words));
}

std::string row(const PublishedModel& model, const DeviceMemory& device) {
  for (const Method& method : methods()) {
    const std::optional<MemoryFit> fit = fit_of(model, method, device);
    if (!fit) continue;
    const int64_t host = fit->memory.peak(Place::host);
    return fmt::format(
        "| {} | {} | {:.1f} | {} | `{}` |\n", std::string(model.name).substr(std::string(model.name).find('/') + 1),
        method.name, static_cast<double>(fit->memory.peak(Place::device)) / kGiB,
        host == 0 ? "" : fmt::format("{:.1f}", static_cast<double>(host) / kGiB), command_text(model, method, *fit));
  }
  return "";
}

}  // namespace

const std::vector<PublishedModel>& published_models() {
  static const std::vector<PublishedModel> all = {
      {"Qwen/Qwen2.5-0.5B", "qwen2", "Qwen2ForCausalLM", 896, 24, 4864, 14, 2, 151936, true},
      {"Qwen/Qwen2.5-1.5B", "qwen2", "Qwen2ForCausalLM", 1536, 28, 8960, 12, 2, 151936, true},
      {"Qwen/Qwen2.5-3B", "qwen2", "Qwen2ForCausalLM", 2048, 36, 11008, 16, 2, 151936, true},
      {"Qwen/Qwen2.5-7B", "qwen2", "Qwen2ForCausalLM", 3584, 28, 18944, 28, 4, 152064, false},
      {"meta-llama/Llama-3.1-8B", "llama", "LlamaForCausalLM", 4096, 32, 14336, 32, 8, 128256, false},
      {"Qwen/Qwen2.5-14B", "qwen2", "Qwen2ForCausalLM", 5120, 48, 13824, 40, 8, 152064, false},
      {"Qwen/Qwen2.5-32B", "qwen2", "Qwen2ForCausalLM", 5120, 64, 27648, 40, 8, 152064, false},
      {"meta-llama/Llama-3.1-70B", "llama", "LlamaForCausalLM", 8192, 80, 28672, 64, 8, 128256, false}};
  return all;
}

std::string config_text(const PublishedModel& model) {
  return fmt::format(
      R"({{"model_type": "{}", "architectures": ["{}"], "hidden_size": {}, "intermediate_size": {},
 "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "vocab_size": {},
 "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": {}, "hidden_act": "silu",
 "torch_dtype": "bfloat16"}})",
      model.model_type, model.architecture, model.hidden, model.inner, model.layers, model.heads, model.kv_heads,
      model.vocabulary, model.is_tied);
}

std::string what_fits_page() {
  std::string page = kIntroduction;
  for (const DeviceMemory& device : kDevices) {
    page += fmt::format(
        "\n## {}\n| model | training | peak, GiB | on the host, GiB | command |\n|---|---|---|---|---|\n", device.name);
    for (const PublishedModel& model : published_models()) page += row(model, device);
  }
  return page;
}

}  // namespace concord
