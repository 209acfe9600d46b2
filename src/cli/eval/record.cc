// kvasir record: records the attention of a model on a text, for kvasir replay.
#include "eval/record.h"

#include <fmt/core.h>

#include <memory>
#include <optional>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

struct RecordCommand {
  EngineOptions engine;
  std::string file;
  std::string out;
  std::int64_t tokens = 0;
  std::optional<int> chunk;
  ObservedTextOptions record;
  bool with_keys = false;
  bool json = false;
};

Result<std::vector<TokenId>> read_tokens(const RecordCommand& command, const LoadedModel& model) {
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text(command.file));
  KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.tokenizer->encode(text, {}));
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (command.tokens > count)
    return invalid_argument("the text has {}, not the {} asked for; give a longer text or a smaller --tokens",
                            counted(count, "token"), command.tokens);
  if (command.tokens == 0 && count > kMostTraceTokens)
    return invalid_argument("the text has {} tokens, and a trace at most {}; say how many with --tokens", count,
                            kMostTraceTokens);
  if (command.tokens > 0) tokens.resize(static_cast<std::size_t>(command.tokens));
  return tokens;
}

Json to_json(const RecordCommand& command, const LoadedModel& model, const ObservedText& result, std::int64_t tokens) {
  Json layers = Json::array();
  for (const auto& tables : result.final) {
    Json layer = {{"layer", layers.size()}};
    add_final(layer, tables, result.by_head);
    layers.push_back(std::move(layer));
  }
  return {{"model", command.engine.model},
          {"trace", command.out},
          {"policy", result.policy},
          {"codec", result.codec},
          {"tokens", tokens},
          {"query_heads", model.config.governed().heads},
          {"kv_heads", model.config.governed().kv_heads},
          {"prefill", command.record.prefill},
          {"chunk", result.chunk},
          {"bytes", trace_shape(model, tokens, command.with_keys).bytes()},
          {"kept_max", result.kept_max},
          {"layers", std::move(layers)}};
}

std::string text_of(const RecordCommand& command, const LoadedModel& model, const ObservedText& result) {
  std::string out = fmt::format("{:>5} {}{:>6}  kept at the end\n", "layer", result.by_head ? " head " : "", "kept");
  for (std::size_t layer = 0; layer < result.final.size(); ++layer)
    for (std::size_t head = 0; head < result.final[layer].size(); ++head) {
      const std::vector<TokenIndex>& ids = result.final[layer][head];
      out += fmt::format("{:>5} {}{:>6}  {}\n", layer, result.by_head ? fmt::format("{:>5} ", head) : "", ids.size(),
                         id_ranges(ids, 80));
    }
  out += fmt::format("\nkvasir replay --policy {} --trace {}", result.policy, printable(command.out, 200));
  if (command.record.prefill > 0) out += fmt::format(" --prefill {} --chunk {}", command.record.prefill, result.chunk);
  const bool sinks = std::ranges::any_of(model.config.layers, [](const LayerSpec& l) { return l.attention.sinks; });
  return out + fmt::format(" --kv-heads {}{}\n", model.config.governed().kv_heads, sinks ? " --sinks" : "");
}

Status record(const RecordCommand& command) {
  if (command.tokens < 0 || command.tokens > kMostTraceTokens)
    return invalid_argument("--tokens {} must be from 1 to {}, or 0: all of the text", command.tokens,
                            kMostTraceTokens);
  if (command.chunk && command.record.prefill == 0)
    return invalid_argument("--chunk cuts the prompt that --prefill names; give --prefill too");
  KVASIR_RETURN_IF_ERROR(make_policy(command.record.policy).status());
  EngineOptions engine = command.engine;
  KVASIR_RETURN_IF_ERROR(add_demote_dir(command.record.policy, engine));
  KVASIR_RETURN_IF_ERROR(check_output(command.out, std::vector{command.engine.model, command.file}));
  KVASIR_RETURN_IF_ERROR(check_replaceable(command.out));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(engine));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, read_tokens(command, *model));
  const auto count = static_cast<std::int64_t>(tokens.size());
  KVASIR_RETURN_IF_ERROR(check_record_options(*model, count, command.record));
  KVASIR_ASSIGN_OR_RETURN(AttentionTraceWriter writer,
                          AttentionTraceWriter::open(command.out, trace_shape(*model, count, command.with_keys)));
  note("kvasir: {} of {}, {}: '{}' will have {}\n", counted(model->config.governed_layers(), "layer"),
       counted(model->config.governed().heads, "query head"), counted(count, "token"), printable(command.out, 200),
       human_bytes(writer.shape().bytes()));
  catch_interrupts();
  ObservedText result;
  {
    ProgressBar bar("recording");
    KVASIR_ASSIGN_OR_RETURN(
        result, record_attention(model, tokens, command.record, writer, [&](std::int64_t done, std::int64_t total) {
          bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
          return !interrupted();
        }));
  }
  KVASIR_RETURN_IF_ERROR(writer.finish());
  if (result.policy != "full" && result.seen_least >= count) note_idle(result.policy, command.record.prefill, count);
  return command.json ? print_json(to_json(command, *model, result, count)) : print(text_of(command, *model, result));
}

}  // namespace

void add_record(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<RecordCommand>();
  CLI::App* command = program.add_subcommand("record", "The attention of a model on a text, for 'kvasir replay'");
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  add_text_option(*command, options->file, "Text to read");
  add_policy_option(*command, options->record.policy, "Retention policy under which it is read (default: full)");
  command->add_option("--tokens", options->tokens, "Tokens of the text to use, at most 2048; 0: all")
      ->capture_default_str();
  command
      ->add_option("--prefill", options->record.prefill,
                   "The first tokens that are a prompt; the others come one at a time, as if generated")
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "Tokens of the prompt per pass (default: the policy's own)");
  command->add_option("-o,--out", options->out, "File to write: NumPy, float32 [layers, query heads, tokens, tokens]")
      ->required()
      ->type_name("FILE");
  command->add_flag("--with-keys", options->with_keys,
                    "Also record keys, values and queries, for policies that read them");
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] {
    options->record.chunk = options->chunk.value_or(0);
    outcome.status = record(*options);
  });
}

}  // namespace kvasir::cli
