// Walks the table of settings: a change of every setting that is compared on resume is found, and named.
#include "trainer/checkpoint/resume_check.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "core/models/adapters/adapter_config.h"
#include "tests/count_members.h"
#include "tests/processes/token_rows.h"
#include "trainer/arguments/table.h"
#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::write_file;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A module named like HF's, whose ids are code points, and one named like jinja2, whose templates precede each message.
constexpr const char* kTokenizers = R"(
class Encoding:
    def __init__(self, text):
        self.ids = [ord(c) for c in text]
        self.offsets = [(i, i + 1) for i in range(len(text))]
class Tokenizer:
    encode_special_tokens = False
    @staticmethod
    def from_str(text): return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_vocab(self, with_added_tokens): return {'a': 255}
    def get_added_tokens_decoder(self): return {}
    def token_to_id(self, name): return {'</s>': 9}.get(name)
    def encode(self, text, add_special_tokens): return Encoding(text)
    def encode_batch(self, texts, add_special_tokens): return [Encoding(text[:-1]) for text in texts]
)";
constexpr const char* kJinja = R"(
class utils:
    Namespace = dict
)";
constexpr const char* kJinjaSandbox = R"(
class ImmutableSandboxedEnvironment:
    def __init__(self, **options): self.filters, self.globals = {}, {}
    def from_string(self, text):
        self.text = text
        return self
    def generate(self, messages, **rest): return [self.text + message['content'] for message in messages]
)";

class ResumeCheck : public ::testing::Test {
 protected:
  // Words of the run that saved, of the run that resumes, both after |common|, and the message.
  struct Change {
    Words common;
    Words saved;
    Words own;
    std::string message;
  };
  using Changes = std::map<std::string, Change>;

  ResumeCheck() {
    testing_processes::write_jsonl(folder_ / "a.jsonl", 64, 200);
    testing_processes::write_jsonl(folder_ / "b.jsonl", 64, 100);
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i * i % 23);
    write_file(folder_ / "text.txt", text);
  }

  std::string data(const std::string& name) const { return folder_ / name; }

  TrainingPlan plan(const Words& words) const {
    const Words base = {"--model",
                        CONCORD_GOLDEN "/hf/qwen2-tiny",
                        "--train_data",
                        data("a.jsonl"),
                        "--max_steps",
                        "12",
                        "--per_device_train_batch_size",
                        "1",
                        "--gradient_accumulation_steps",
                        "4",
                        "--learning_rate",
                        "1e-3",
                        "--tokenizer",
                        "byte",
                        "--data_cache_path",
                        "none",
                        "--output_dir",
                        data("out")};
    const TrainingArguments arguments = resolve_arguments(parse_command_line(base + words).arguments, 1);
    check_arguments(arguments, 1);
    return plan_training(arguments, 0, 1);
  }

  // Writes what a comparison reads of a checkpoint.
  std::string save(const TrainingPlan& plan, TrainingState* state) const {
    const std::string folder = data("checkpoint");
    fs::remove_all(folder);
    fs::create_directory(folder);
    if (plan.adapter) {
      write_file(folder + "/adapter_config.json", to_json(saved_form(*plan.adapter)));
    } else {
      write_file(folder + "/config.json", plan.config.text);
    }
    describe_run(plan, state);
    return folder;
  }

  // Returns the message for a run with |own| that resumes one with |saved|; empty: none.
  std::string message(const Words& saved, const Words& own) const {
    TrainingState state;
    const std::string folder = save(plan(saved), &state);
    const TrainingPlan resumed = plan(own);
    try {
      check_resumable(folder, state, resumed, {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  // Returns whether a setting changes only samples with images or videos, which need transformers' processors.
  static bool is_of_media(std::string_view name) {
    return name == "media_dir" || name.starts_with("image_") || name.starts_with("video_");
  }

  // Expects |changes| to have every setting with |label|, and each of them to be found. Settings of images and videos
  // are changed in tests/parity/multimodal.
  void expect_found(Resume label, const Changes& changes) const {
    for (const Argument* setting : all_arguments()) {
      if (setting->resume != label || is_of_media(setting->name)) continue;
      SCOPED_TRACE(setting->name);
      const auto found = changes.find(std::string(setting->name));
      ASSERT_NE(found, changes.end()) << "the table compares it on resume; add a change of it here";
      const auto& [common, saved, own, expected] = found->second;
      EXPECT_THAT(message(common + saved, common + own), HasSubstr(expected));
      EXPECT_EQ(message(common + own, common + own), "");
    }
  }

  // Expects a message that names the setting, and |allowed|, if the text of any setting with |label| differs.
  void expect_texts_compared(Resume label, const std::string& allowed) const {
    TrainingState state;
    const TrainingPlan own = plan({});
    const std::string folder = save(own, &state);
    const std::map<std::string_view, std::string> names = {{"bf16", "precision bf16"}, {"fp16", "precision fp16"}};
    for (const Argument* setting : all_arguments()) {
      if (setting->resume != label) continue;
      SCOPED_TRACE(setting->name);
      TrainingState other = state;
      const auto text = std::ranges::find(other.arguments, setting->name, &std::pair<std::string, std::string>::first);
      ASSERT_NE(text, other.arguments.end());
      text->second = text->second == "false" ? "true" : "\"another\"";
      const auto name = names.find(setting->name);
      const std::string expected = name == names.end() ? std::string(setting->name) + " " : name->second;
      EXPECT_THAT(config_error([&] { check_resumable(folder, other, own, {}); }),
                  AllOf(HasSubstr("was saved with " + expected), HasSubstr(allowed)));
    }
  }

  Folder folder_;
};

TEST_F(ResumeCheck, EverySettingSaysHowItIsCompared) {
  for (const Argument* setting : all_arguments()) EXPECT_NE(setting->resume, Resume::undecided) << setting->name;
  EXPECT_EQ(message({}, {}), "");
}

TEST_F(ResumeCheck, OptimizerObjectiveAndSeedAreComparedByTheirTexts) {
  expect_texts_compared(Resume::optimizer, "--no_load_optim");
  expect_texts_compared(Resume::objective, "--no_load_optim");
  expect_texts_compared(Resume::seed, "--no_load_rng");
}

TEST_F(ResumeCheck, NamesOfOneObjectiveAreEqual) {
  EXPECT_EQ(message({"--stage", "pt"}, {"--stage", "sft"}), "");
  EXPECT_THAT(message({"--optimizer", "adam"}, {"--optimizer", "sgd"}),
              HasSubstr("saved with optimizer adam, but this run has optimizer sgd; use the same, or --no_load_optim"));
  EXPECT_THAT(message({"--bf16"}, {"--fp16"}), HasSubstr("saved with precision bf16, but this run has precision fp16"));
}

TEST_F(ResumeCheck, EverySettingOfTheScheduleChangesACurve) {
  const Words warmup = {"--warmup_steps", "2"}, samples = {"--max_steps", "-1", "--train_samples", "48"},
              wsd = {"--lr_scheduler_type", "wsd"}, steps = {"--lr_wsd_decay_steps", "4"},
              decay = {"--start_weight_decay", "0.01", "--end_weight_decay", "0.1"};
  const Words linear = {"--weight_decay_incr_style", "linear"};
  expect_found(
      Resume::schedule,
      {{"learning_rate", {{}, {}, {"--learning_rate", "2e-3"}, "has learning_rate 0.002"}},
       {"weight_decay", {{}, {}, {"--weight_decay", "0.1"}, "has weight_decay 0.1"}},
       {"lr_scheduler_type", {{}, {}, {"--lr_scheduler_type", "cosine"}, "has curve cosine"}},
       {"lr_scheduler_kwargs",
        {{"--lr_scheduler_type", "cosine"}, {}, {"--lr_scheduler_kwargs", "{num_cycles: 1.5}"}, "has num_cycles 1.5"}},
       {"min_lr", {{}, {}, {"--min_lr", "1e-4"}, "has min_lr 0.0001"}},
       {"lr_warmup_init", {warmup, {}, {"--lr_warmup_init", "1e-5"}, "has lr_warmup_init 1e-05"}},
       {"warmup_steps", {{}, {}, warmup, "has warmup 2 steps"}},
       {"warmup_samples", {{}, {}, {"--warmup_samples", "8"}, "warmup 8 samples"}},
       {"warmup_ratio", {{}, {}, {"--warmup_ratio", "0.5"}, "has warmup 6 steps"}},
       {"lr_decay_steps", {{}, {}, {"--lr_decay_steps", "20"}, "has end of the curve 20 steps"}},
       {"lr_decay_samples", {samples, {}, {"--lr_decay_samples", "80"}, "has end of the curve 80 samples"}},
       {"lr_wsd_decay_steps", {wsd, steps, {"--lr_wsd_decay_steps", "6"}, "length of the decay 6 steps"}},
       {"lr_wsd_decay_samples",
        {samples + wsd,
         {"--lr_wsd_decay_samples", "16"},
         {"--lr_wsd_decay_samples", "24"},
         "length of the decay 24 samples"}},
       {"lr_wsd_decay_style", {wsd + steps, {}, {"--lr_wsd_decay_style", "linear"}, "has curve linear"}},
       {"lr_step_offset", {{}, {}, {"--lr_step_offset", "1"}, "has lr_step_offset 1"}},
       {"start_weight_decay", {decay + linear, {}, {"--start_weight_decay", "0.02"}, "has start_weight_decay 0.02"}},
       {"end_weight_decay", {decay + linear, {}, {"--end_weight_decay", "0.2"}, "has weight_decay 0.2"}},
       {"weight_decay_incr_style",
        {decay, linear, {"--weight_decay_incr_style", "cosine"}, "has weight_decay_incr_style cosine"}},
       {"num_train_epochs",
        {{"--max_steps", "-1"}, {"--num_train_epochs", "1"}, {"--num_train_epochs", "2"}, "end of the curve 32 steps"}},
       {"max_steps", {{}, {}, {"--max_steps", "14"}, "max_steps, which was 12 and is 14"}},
       {"train_samples", {samples, {}, {"--train_samples", "56"}, "has end of the curve 56 samples"}}});
}

// Lengths are chosen so that no other text of a schedule changes with a member.
TEST(ScheduleTexts, HaveEveryMemberOfTheSettings) {
  const LrSettings plain{.lr = 1, .warmup = 2, .curve = LrCurve::cosine, .weight_decay_curve = LrCurve::linear};
  LrSettings root = plain;
  root.curve = LrCurve::inverse_sqrt;
  using Change = std::function<void(LrSettings&)>;
  const std::vector<Change> of_cosine = {
      [](LrSettings& s) { s.lr = 2; },
      [](LrSettings& s) { s.min_lr = 2; },
      [](LrSettings& s) { s.init_lr = 2; },
      [](LrSettings& s) { s.warmup = 3; },
      [](LrSettings& s) { s.curve = LrCurve::linear; },
      [](LrSettings& s) { s.decay_start = 3; },
      [](LrSettings& s) { s.decay_end = 3; },
      [](LrSettings& s) { s.last = 3; },
      [](LrSettings& s) { s.cycles = 3; },
      [](LrSettings& s) { s.start_weight_decay = 2; },
      [](LrSettings& s) { s.end_weight_decay = 2; },
      [](LrSettings& s) { s.weight_decay_curve = LrCurve::cosine; },
      [](LrSettings& s) { s.weight_decay_length = 3; },
      [](LrSettings& s) { s.increment = 3; },
      [](LrSettings& s) { s.offset = 3; },
  };
  const std::vector<Change> of_root = {[](LrSettings& s) { s.timescale = 3; }, [](LrSettings& s) { s.shift = 3; }};
  ASSERT_EQ(of_cosine.size() + of_root.size(), tests::count_members<LrSettings>()) << "add the new member here";
  const auto expect_changed = [](const LrSettings& from, const std::vector<Change>& changes) {
    for (size_t i = 0; i < changes.size(); ++i) {
      LrSettings to = from;
      changes[i](to);
      EXPECT_NE(schedule_texts(to), schedule_texts(from)) << "change " << i;
    }
  };
  expect_changed(plain, of_cosine);
  expect_changed(root, of_root);
}

TEST_F(ResumeCheck, EverySettingOfTheDataChangesItsIdentity) {
  ::setenv("PYTHONPATH", folder_.path().c_str(), 1);
  write_file(folder_ / "tokenizers.py", kTokenizers);
  fs::create_directory(data("jinja2"));
  write_file(folder_ / "jinja2/__init__.py", kJinja);
  write_file(folder_ / "jinja2/ext.py", "loopcontrols = None\nclass Extension: pass\n");
  write_file(folder_ / "jinja2/sandbox.py", kJinjaSandbox);
  fs::create_directory(data("tokenizer"));
  write_file(folder_ / "tokenizer/tokenizer.json", "{}");
  for (const char* name : {"first.jinja", "second.jinja"}) write_file(folder_ / name, name);
  std::string chats;
  for (int i = 0; i < 48; ++i) {
    chats += R"({"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}]})"
             "\n";
  }
  write_file(folder_ / "chats.jsonl", chats);
  write_file(folder_ / "dataset_info.json", R"({"a": {"file_name": "text_a.jsonl", "columns": {"prompt": "text"}},
    "b": {"file_name": "text_b.jsonl", "columns": {"prompt": "text"}}})");
  for (const std::string name : {"a", "b"}) {
    std::string rows;
    for (int i = 0; i < 48; ++i) rows += R"({"text": "some text )" + name + R"(", "body": "other text"})" + "\n";
    write_file(folder_ / ("text_" + name + ".jsonl"), rows);
  }
  const Words text = {"--train_data", data("text.txt"), "--seq_length", "32"},
              chat = {"--train_data", data("chats.jsonl"), "--tokenizer", data("tokenizer")},
              cut = {"--seq_length", "16", "--cutoff_len", "8"}, packed = {"--sequence_packing", "--seq_length", "48"};
  const std::string a = data("a.jsonl"), b = data("b.jsonl");
  expect_found(
      Resume::data,
      {{"train_data", {{}, {}, {"--train_data", b}, "contents "}},
       {"dataset",
        {{"--train_data=", "--dataset_dir", folder_.path()}, {"--dataset", "a"}, {"--dataset", "b"}, "contents "}},
       {"dataset_text_field",
        {{"--train_data", data("text_a.jsonl")}, {}, {"--dataset_text_field", "body"}, "contents "}},
       {"train_data_blend",
        {{"--train_data="},
         {"--train_data_blend", "0.3," + a + ",0.7," + b},
         {"--train_data_blend", "0.4," + a + ",0.6," + b},
         "has source 1: weight 0.4"}},
       {"split", {{}, {"--split", "8,1,1"}, {"--split", "6,3,1"}, "has the part of them 0 to 38"}},
       {"max_samples", {{}, {"--max_samples", "40"}, {"--max_samples", "20"}, "has samples 20"}},
       {"seq_length", {{}, {"--seq_length", "16"}, {"--seq_length", "24"}, "has seq_length 24"}},
       {"cutoff_len", {{"--seq_length", "16"}, {}, {"--cutoff_len", "8"}, "contents "}},
       {"truncation", {cut, {}, {"--truncation", "left"}, "contents "}},
       {"tokenizer", {text, {}, {"--tokenizer", data("tokenizer")}, "contents "}},
       {"chat_template",
        {chat, {"--chat_template", data("first.jinja")}, {"--chat_template", data("second.jinja")}, "contents "}},
       {"reset_position_ids", {text, {}, {"--reset_position_ids"}, "has reset_position_ids true"}},
       {"reset_attention_mask", {text, {}, {"--reset_attention_mask"}, "has reset_attention_mask true"}},
       {"eod_mask_loss", {text, {}, {"--eod_mask_loss"}, "has eod_mask_loss true"}},
       {"eod_token_id",
        {text + Words{"--eod_mask_loss"}, {"--eod_token_id", "5"}, {"--eod_token_id", "6"}, "has eod_token_id 6"}},
       {"sequence_packing", {{"--seq_length", "48"}, {}, {"--sequence_packing"}, "has sequence_packing true"}},
       {"packing_strategy", {packed, {}, {"--packing_strategy", "best_fit"}, "has packing_strategy best_fit"}},
       {"shuffle", {{}, {}, {"--shuffle", "false"}, "has shuffle false"}},
       {"sample_order", {{}, {}, {"--sample_order", "torch"}, "has sample_order torch"}},
       {"dataloader_drop_last", {{}, {}, {"--dataloader_drop_last", "false"}, "has dataloader_drop_last false"}},
       {"data_seed", {{}, {}, {"--data_seed", "7"}, "has data_seed 7"}},
       {"per_device_train_batch_size", {{}, {}, {"--per_device_train_batch_size", "2"}, "has global batch size 8"}},
       {"gradient_accumulation_steps", {{}, {}, {"--gradient_accumulation_steps", "2"}, "has global batch size 2"}},
       {"global_batch_size",
        {{"--gradient_accumulation_steps", "1"},
         {"--global_batch_size", "4"},
         {"--global_batch_size", "8"},
         "has global batch size 8"}},
       {"rampup_batch_size",
        {{}, {"--rampup_batch_size", "2,2,8"}, {"--rampup_batch_size", "2,2,16"}, "has rampup_batch_size 2,2,16"}}});
  ::unsetenv("PYTHONPATH");
}

TEST_F(ResumeCheck, EverySettingOfTheModelAndItsAdapterIsFoundInAConfig) {
  const std::string model = CONCORD_GOLDEN "/hf/qwen2-tiny", other = CONCORD_GOLDEN "/hf/qwen3-tiny";
  expect_found(Resume::model, {{"model", {{}, {}, {"--model", other}, "use --model " + data("checkpoint")}},
                               {"model_config",
                                {{"--model="},
                                 {"--model_config", model + "/config.json"},
                                 {"--model_config", other + "/config.json"},
                                 "use --model " + data("checkpoint")}}});
  const Words lora = {"--finetuning_type", "lora"};
  for (const char* name : {"first", "second", "third"}) {
    fs::create_directory(data(name));
    write_file(data(name) + "/adapter_config.json", to_json(saved_form(*plan(lora).adapter)));
  }
  const std::string oss = data("oss");
  fs::create_directory(oss);
  write_file(oss + "/config.json",
             R"({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": 320,
      "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8,
      "num_key_value_heads": 1, "max_position_embeddings": 64, "sliding_window": 8, "num_local_experts": 2,
      "num_experts_per_tok": 1, "rms_norm_eps": 1e-5, "layer_types": ["sliding_attention", "full_attention"],
      "hidden_act": "silu", "attention_bias": true, "tie_word_embeddings": false,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})");
  const std::string first = data("first"), second = data("second"), third = data("third");
  expect_found(Resume::adapter,
               {{"finetuning_type", {{}, {}, lora, "has the weights of a whole model, but this run trains an adapter"}},
                {"lora_rank", {lora, {}, {"--lora_rank", "6"}, "has lora_rank 6"}},
                {"lora_alpha", {lora, {}, {"--lora_alpha", "32"}, "has lora_alpha 32"}},
                {"lora_dropout", {lora, {}, {"--lora_dropout", "0.1"}, "has lora_dropout 0.1"}},
                {"lora_target", {lora, {}, {"--lora_target", "q_proj,v_proj"}, "has lora_target "}},
                {"lora_target_parameters",
                 {lora + Words{"--model", oss},
                  {},
                  {"--lora_target_parameters", "mlp.experts.down_proj"},
                  "has lora_target_parameters "}},
                {"use_rslora", {lora, {}, {"--use_rslora"}, "has use_rslora true"}},
                {"use_dora", {lora, {}, {"--use_dora"}, "has use_dora true"}},
                {"rank_pattern", {lora, {}, {"--rank_pattern", "{q_proj: 2}"}, "has rank_pattern "}},
                {"alpha_pattern", {lora, {}, {"--alpha_pattern", "{q_proj: 2}"}, "has alpha_pattern "}},
                {"modules_to_save", {lora, {}, {"--modules_to_save", "lm_head"}, "modules_to_save "}},
                {"adapter_name_or_path",
                 {lora,
                  {"--create_new_adapter", "--adapter_name_or_path", first + "," + third},
                  {"--create_new_adapter", "--adapter_name_or_path", second + "," + third},
                  "merged adapters first third, but this run has merged adapters second third"}},
                {"create_new_adapter",
                 {lora + Words{"--adapter_name_or_path", first},
                  {},
                  {"--create_new_adapter"},
                  "but this run has merged adapters first"}}});
}

}  // namespace
}  // namespace concord
