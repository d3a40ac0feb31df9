#include "trainer/cli/probe.h"

#include <ATen/core/Tensor.h>
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config_error.h"
#include "core/initialize.h"
#include "core/launch/launcher.h"
#include "core/mesh/job_environment.h"
#include "core/models/parameter_plan.h"
#include "core/models/tensor_files.h"
#include "core/models/token_slices.h"
#include "trainer/probe.h"

namespace concord {
namespace {

constexpr const char* kFooter = R"(The batch is a safetensors file with input_ids and labels, int64 [B, S], labels at
their own token and -100 for none, as Hugging Face has them; optional position_ids, and cu_seqlens where sequences are
packed into one row. The dump has logits, loss, per_token_loss and what the flags add, whatever the layout that computed
it:
  concord probe --model DIR --batch batch.safetensors --out one.safetensors --grads
  concord probe --model DIR --batch batch.safetensors --out two.safetensors --grads --nproc 2 \
      --tensor_model_parallel_size 2
  concord diff one.safetensors two.safetensors
--nproc starts processes on this machine; torchrun, srun, mpirun and concord launch do as well.)";

struct ProbeArguments {
  std::string model, model_config, batch, out, dtype, layout;
  InitializeArgs sizes;
  ModelArgs model_args;
  ProbeOptions options;
  int nproc = 0;
  bool json = false;
};

c10::ScalarType dtype_named(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  if (name == "float64") return at::kDouble;
  throw ConfigError(fmt::format("--dtype is '{}'; it can be float32, bfloat16, float16 or float64", name));
}

void check_words(const ProbeArguments& given) {
  if (given.model.empty() == given.model_config.empty()) {
    throw ConfigError("probe takes either --model DIR (weights of a folder) or --model_config FILE (fresh weights)");
  }
  if (given.batch.empty() && !given.options.weights) {
    throw ConfigError("probe needs --batch FILE, or --weights to dump weights alone");
  }
  if (given.batch.empty() && (given.options.grads || given.options.activations)) {
    throw ConfigError("--grads and --dump_activations need --batch FILE");
  }
  const std::filesystem::path folder = std::filesystem::absolute(given.out).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(fmt::format("--out {}: there is no folder {}", given.out, folder.string()));
  }
}

// ------------------------------------------------------------------------------------------------------------- batch

struct Batch {
  MicroBatch batch = {};
  bool flat = false;  // the file has [T], for packed sequences
};

Batch read_batch(const std::string& path) {
  if (path.empty()) return {};
  const safetensors::Reader file(path);
  const auto tensor = [&](const char* name) {
    const at::Tensor value = read_tensor(file, name);
    if (!c10::isIntegralType(value.scalar_type(), /*includeBool=*/false)) {
      throw ConfigError(fmt::format("{}: {} is of type {}; it has to be of integers", path, name,
                                    c10::toString(value.scalar_type())));
    }
    return value.to(at::kLong);
  };
  Batch result;
  MicroBatch& batch = result.batch;
  if (file.find("cu_seqlens") != nullptr) {
    const at::Tensor ends = tensor("cu_seqlens").flatten();
    batch.cu_seqlens.assign(ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + ends.numel());
  }
  batch.input_ids = tensor("input_ids");
  batch.labels = tensor("labels");
  if (file.find("position_ids") != nullptr) batch.position_ids = tensor("position_ids");
  result.flat = batch.input_ids.dim() == 1;
  if (result.flat) {
    for (at::Tensor* each : {&batch.input_ids, &batch.labels, &batch.position_ids}) {
      if (each->defined()) *each = each->unsqueeze(0);
    }
  }
  check_batch(batch, /*with_labels=*/true);
  batch.labels = labels_that_follow(batch.labels, batch.cu_seqlens);
  return result;
}

// --------------------------------------------------------------------------------------------------------------- run

ModelConfig config_of(const ProbeArguments& given) {
  return read_model_config(given.model.empty() ? given.model_config : given.model);
}

// What is wrong is said before any process waits for another one.
void check_before_start(const ProbeArguments& given, int64_t world) {
  const ModelConfig config = config_of(given);
  const RankLayout layout({.world = world,
                           .tensor = given.sizes.tensor_model_parallel_size,
                           .context = given.sizes.context_parallel_size,
                           .pipeline = given.sizes.pipeline_model_parallel_size,
                           .virtual_pipeline = given.sizes.virtual_pipeline_model_parallel_size});
  const StageLayers whole{.embedding = true, .layers = config.num_hidden_layers, .loss = true};
  plan_parameters(config, whole, {.tp = layout.tp()});
  recompute_plan(given.model_args.recompute, config.num_hidden_layers);
  read_batch(given.batch);
}

void print_result(const ProbeArguments& given, const ProbeResult& result) {
  const bool computed = result.contains("loss");
  const double loss = computed ? result.at("loss").to(at::kDouble).item<double>() : 0;
  if (given.json) {
    nlohmann::ordered_json document{{"out", given.out}, {"tensors", result.size()}};
    if (computed) document["loss"] = loss;
    fmt::print("{}\n", document.dump());
    return;
  }
  if (computed) fmt::print("loss {:.7g}\n", loss);
  fmt::print("{} tensors in {}\n", result.size(), given.out);
}

void run_rank(const ProbeArguments& given) {
  ParallelContext& context = initialize(given.sizes);
  {
    ModelArgs args = given.model_args;
    const ModelConfig config = config_of(given);
    args.seed = given.sizes.seed;
    if (!given.layout.empty()) {
      args.stages = parse_layer_layout(given.layout, config.num_hidden_layers, context.layout().pp());
    }
    VirtualModels models = given.model.empty() ? AutoModel::from_config(config, args, context)
                                               : AutoModel::from_pretrained(given.model, args, context);
    const Batch batch = read_batch(given.batch);
    ProbeResult result = probe(models, batch.batch, given.options, context);
    if (context.rank() == 0) {
      for (auto& [name, tensor] : result) {
        const bool of_tokens = name == "logits" || name == "per_token_loss" || name.starts_with("activation.");
        if (batch.flat && of_tokens) tensor = tensor.squeeze(0);
      }
      write_tensors(given.out, result);
      print_result(given, result);
    }
  }
  finalize();
}

// This command line without --nproc, for the processes.
std::vector<std::string> command_of_ranks() {
  std::ifstream stream("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe").string()};
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--nproc") {
      ++i;
    } else if (!words[i].starts_with("--nproc=")) {
      command.push_back(words[i]);
    }
  }
  return command;
}

int run_probe(ProbeArguments given) {
  check_words(given);
  if (!given.dtype.empty()) given.model_args.dtype = dtype_named(given.dtype);
  const JobEnvironment environment = read_job_environment();
  const bool is_started = environment.source != JobSource::single;
  if (is_started && given.nproc > 0) {
    throw ConfigError(fmt::format("--nproc {} starts processes, but this one was started by {} already; leave it out",
                                  given.nproc, to_string(environment.source)));
  }
  check_before_start(given, given.nproc > 0 ? given.nproc : environment.world);
  if (given.nproc > 1) {
    LaunchOptions options;
    options.nproc = given.nproc;
    options.prefix = false;
    return launch(options, command_of_ranks());
  }
  run_rank(given);
  return 0;
}

void add_layout_options(CLI::App* app, ProbeArguments* given) {
  InitializeArgs& sizes = given->sizes;
  ModelArgs& args = given->model_args;
  app->add_option("--nproc", given->nproc, "starts so many processes on this machine")->check(CLI::Range(1, 4096));
  app->add_option("--tensor_model_parallel_size", sizes.tensor_model_parallel_size)->capture_default_str();
  app->add_option("--context_parallel_size", sizes.context_parallel_size)->capture_default_str();
  app->add_option("--pipeline_model_parallel_size", sizes.pipeline_model_parallel_size)->capture_default_str();
  app->add_option("--virtual_pipeline_model_parallel_size", sizes.virtual_pipeline_model_parallel_size)
      ->capture_default_str();
  app->add_option("--pipeline_model_parallel_layout", given->layout, "which stage has what: \"E,t*3|t*4,L\"");
  app->add_flag("--sequence_parallel,!--no_sequence_parallel", args.sequence_parallel,
                "tokens are split over the tensor-parallel ranks between layers");
  app->add_option("--cp_comm_type", args.cp_comm_type, "context parallelism: p2p (ring) or all_gather")
      ->capture_default_str();
  app->add_option("--recompute_granularity", args.recompute.granularity, "full or selective");
  app->add_option("--recompute_method", args.recompute.method, "uniform or block")->capture_default_str();
  app->add_option("--recompute_num_layers", args.recompute.num_layers)->capture_default_str();
  app->add_option("--recompute_modules", args.recompute.modules, "of selective: core_attn, mlp, layernorm");
  app->add_option("--ddp_timeout", sizes.ddp_timeout, "seconds that a rank waits for another")->capture_default_str();
}

}  // namespace

void add_probe_command(CLI::App* program, int* exit_code) {
  const auto given = std::make_shared<ProbeArguments>();
  CLI::App* app =
      program->add_subcommand("probe", "one forward, and backward, on a given batch under any layout; dumps results");
  app->footer(kFooter);
  app->add_option("--model", given->model, "Hugging Face folder: config.json and safetensors");
  app->add_option("--model_config", given->model_config, "config.json of a model to initialise afresh");
  app->add_option("--seed", given->sizes.seed, "of the initialisation")->capture_default_str();
  app->add_option("--batch", given->batch, "safetensors file with input_ids and labels");
  app->add_option("--out", given->out, "safetensors file to write")->required();
  app->add_option("--dtype", given->dtype, "float32, bfloat16, float16 or float64 (as the config says)");
  app->add_flag("--grads", given->options.grads, "adds grad.NAME, of the mean loss, for each HF parameter");
  app->add_flag("--dump_activations", given->options.activations, "adds activation.NUMBER.PART, in the model's order");
  app->add_flag("--weights", given->options.weights, "adds weight.NAME; --batch may then be left out");
  app->add_flag("--json", given->json, "prints one JSON document");
  add_layout_options(app, given.get());
  app->callback([given, exit_code] { *exit_code = run_probe(*given); });
}

}  // namespace concord
