#include "trainer/generation/prompt_samples.h"

#include <fmt/ranges.h>

#include "core/base/config_error.h"
#include "trainer/generation/generate.h"

namespace concord {

PromptSamples::PromptSamples(const TrainingPlan& plan, ParallelContext& job)
    : job_(job),
      writes_(job.rank() == plan.writing_rank()),
      prompts_(plan.sample_prompts),
      max_new_tokens_(plan.arguments.evaluation.sample_max_new_tokens) {
  if (prompts_.empty()) return;
  std::vector<int64_t> ends;
  if (writes_) {
    const TrainingArguments& a = plan.arguments;
    if (!plan.tokenizer.empty()) tokenizer_ = make_tokenizer(plan.tokenizer, a.data.chat_template);
    ids_ = encode_prompts(prompts_, tokenizer_.get());
    ends = end_tokens(a.model.path, tokenizer_.get());
  }
  ids_ = from_first_rank(ids_, job);
  ends_ = from_first_rank({ends}, job).front();
}

NamedTexts PromptSamples::generate(VirtualModels& models) {
  if (prompts_.empty()) return {};
  const std::vector<Generated> made =
      concord::generate(models, ids_, ends_, {.max_new_tokens = max_new_tokens_, .sampling = {}}, job_);
  NamedTexts texts;
  for (size_t i = 0; writes_ && i < made.size(); ++i) {
    const auto text = [&](const std::vector<int64_t>& ids) {
      return tokenizer_ ? tokenizer_->decode(ids) : fmt::format("{}", fmt::join(ids, " "));
    };
    texts.emplace_back(prompts_[i].kind == Prompt::Kind::text ? prompts_[i].text : text(ids_[i]), text(made[i].ids));
  }
  return texts;
}

}  // namespace concord
