// kvasir demo: what policies keep of one text, shown by a question about its middle.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/counted.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/documents.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kFact = "The secret number of the copper compass is";

struct DemoOptions {
  EngineOptions engine;
  std::string file;
  std::string number = "48213";
  std::vector<std::string> policies;
  std::string continuation = "streaming:cap=2048";
  std::int64_t tokens = 400;
  bool json = false;
};

// What one policy made of the question.
struct Answer {
  std::string text;
  GenerateResult result;
  Session::Forgotten forgotten;
  bool found = false;
};

// Returns the place of the blank line that is nearest to the middle of the text, or the middle line end.
std::size_t middle_of(std::string_view text) {
  const std::size_t half = text.size() / 2;
  for (const std::string_view separator : {"\n\n", "\n"}) {
    const std::size_t before = text.rfind(separator, half);
    const std::size_t after = text.find(separator, half);
    if (before == std::string_view::npos && after == std::string_view::npos) continue;
    if (before == std::string_view::npos) return after;
    if (after == std::string_view::npos) return before;
    return half - before < after - half ? before : after;
  }
  return text.size();
}

// Returns the text with the fact on a line of its own in the middle, and the question at the end.
std::string with_question(std::string_view text, std::string_view number) {
  const std::size_t middle = middle_of(text);
  return fmt::format("{}\n{} {}.{}\n{}", text.substr(0, middle), kFact, number, text.substr(middle), kFact);
}

struct OpenSession {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

// Opens the model anew, so that the cache is sized for this policy alone, and reads the text.
Result<OpenSession> read_under(const DemoOptions& options, const std::string& policy, std::string_view text) {
  OpenSession open;
  KVASIR_ASSIGN_OR_RETURN(open.engine, Engine::open(options.engine));
  KVASIR_ASSIGN_OR_RETURN(open.session, open.engine->new_session({.policy = policy}));
  ProgressBar bar(printable(policy, 40));
  KVASIR_RETURN_IF_ERROR(open.session->read(text, [&](std::int64_t done, std::int64_t total) {
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
    return !interrupted();
  }));
  return open;
}

Result<Answer> ask(const DemoOptions& options, const std::string& policy, std::string_view prompt) {
  KVASIR_ASSIGN_OR_RETURN(const OpenSession open, read_under(options, policy, prompt));
  GenerateOptions generate;
  generate.max_tokens = 12;
  generate.stop = {".", "\n"};
  generate.sampling.temperature = 0;
  Answer answer;
  KVASIR_ASSIGN_OR_RETURN(answer.result, open.session->generate(generate, [](std::string_view) { return true; }));
  answer.text =
      answer.result.text.substr(std::min(answer.result.text.find_first_not_of(' '), answer.result.text.size()));
  answer.forgotten = open.session->forgotten();
  answer.found = answer.text == options.number;
  return answer;
}

// Returns how the answer came about: "found", or why it was not. `missed_whole`: the model did not find the number even
// in the whole text.
std::string verdict(const Answer& answer, bool missed_whole) {
  if (answer.found) return "found";
  if (answer.forgotten.dropped == 0) return "not found, although nothing was dropped";
  return fmt::format("{}: {} dropped, the first is token {}", missed_whole ? "not found" : "forgotten",
                     counted(answer.forgotten.dropped, "token"), answer.forgotten.first);
}

Json to_json(const Answer& answer) {
  const KvReport& kv = answer.result.kv;
  return {{"policy", kv.policy},
          {"answer", answer.text},
          {"found", answer.found},
          {"seen", kv.seen},
          {"kept", kv.kept},
          {"dropped", answer.forgotten.dropped},
          {"bytes", kv.bytes},
          {"bytes_peak", kv.bytes_peak},
          {"seconds", answer.result.prompt_seconds + answer.result.seconds}};
}

// Returns a line for each policy that says what it keeps.
std::string legend(const std::vector<std::string>& policies) {
  std::string lines;
  for (const std::string& policy : policies) {
    const std::string_view name = std::string_view(policy).substr(0, policy.find(':'));
    for (const PolicyInfo* info : all_policies())
      if (info->name == name) lines += fmt::format("  {:<10} {}\n", info->name, info->summary);
  }
  return lines.empty() ? lines : "\n" + lines;
}

Result<Json> ask_all(const DemoOptions& options, std::string_view prompt) {
  Json answers = Json::array();
  std::size_t width = std::string_view("policy").size();
  for (const std::string& policy : options.policies) width = std::max(width, policy.size());
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(print(fmt::format("{:<{}}  {:>13}  {:>9}  {:>9}  {:>6}  {}\n", "policy", width,
                                             "kept of read", "KV memory", "peak", "time", "answer")));
  bool missed_whole = false;
  for (const std::string& policy : options.policies) {
    KVASIR_ASSIGN_OR_RETURN(const Answer answer, ask(options, policy, prompt));
    answers.push_back(to_json(answer));
    missed_whole = missed_whole || (!answer.found && answer.forgotten.dropped == 0);
    if (options.json) continue;
    const KvReport& kv = answer.result.kv;
    KVASIR_RETURN_IF_ERROR(print(fmt::format(
        "{:<{}}  {:>13}  {:>9}  {:>9}  {:>4.1f} s  {}: {}\n", policy, width, fmt::format("{} of {}", kv.kept, kv.seen),
        human_bytes(kv.bytes), human_bytes(kv.bytes_peak), answer.result.prompt_seconds + answer.result.seconds,
        printable(answer.text, 40), verdict(answer, missed_whole))));
  }
  if (!options.json) KVASIR_RETURN_IF_ERROR(print(legend(options.policies)));
  return answers;
}

// Continues the text beyond the trained context.
Result<Json> write_on(const DemoOptions& options, std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const OpenSession open, read_under(options, options.continuation, text));
  const KvReport before = open.session->kv();
  const std::int64_t context = open.engine->model().context;
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(
        print(fmt::format("\nThe model was trained for {}. Now it writes on from token {} under {}:\n\n",
                          counted(context, "token"), before.seen, options.continuation)));
  GenerateOptions generate;
  generate.max_tokens = options.tokens;
  generate.ignore_eos = true;
  generate.sampling.repetition_penalty = 1.1F;
  generate.sampling.penalty_window = 256;
  generate.sampling.seed = 7;
  Status written;
  KVASIR_ASSIGN_OR_RETURN(const GenerateResult result, open.session->generate(generate, [&](std::string_view piece) {
    if (!options.json) written = print(piece);
    return written.ok() && !interrupted();
  }));
  KVASIR_RETURN_IF_ERROR(written);
  const KvReport& kv = result.kv;
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(
        print(fmt::format("\n\nIt wrote {} in {:.1f} s ({:.0f}/s), up to token {}. KV memory: {} when it began, {} at "
                          "the end, {} at most.\n",
                          counted(result.tokens, "token"), result.seconds,
                          result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0.0, kv.seen,
                          human_bytes(before.bytes), human_bytes(kv.bytes), human_bytes(kv.bytes_peak))));
  if (result.finish_reason == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "");
  return Json{{"policy", kv.policy},         {"context", context},        {"text", result.text},
              {"tokens", result.tokens},     {"seconds", result.seconds}, {"seen", kv.seen},
              {"bytes_begin", before.bytes}, {"bytes", kv.bytes},         {"bytes_peak", kv.bytes_peak}};
}

Status demo(const DemoOptions& options) {
  const bool digits = options.number.size() >= 1 && options.number.size() <= 9 &&
                      std::ranges::all_of(options.number, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return invalid_argument("--number '{}' is not 1 to 9 digits", printable(options.number, 40));
  if (options.tokens < 0) return invalid_argument("--tokens is {}; it must be at least 0", options.tokens);
  for (const std::string& policy : options.policies) KVASIR_RETURN_IF_ERROR(make_policy(policy).status());
  KVASIR_RETURN_IF_ERROR(make_policy(options.continuation).status());
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_document(options.file));
  catch_interrupts();
  const std::string name =
      options.file == "-" ? "the text" : printable(options.file.substr(options.file.rfind('/') + 1), 80);
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(
        print(fmt::format("In the middle of {} stands this line, and at its end the model is asked for the number:\n\n"
                          "    {} {}.\n\n",
                          name, kFact, options.number)));
  KVASIR_ASSIGN_OR_RETURN(const Json answers, ask_all(options, with_question(text, options.number)));
  Json report = {{"number", options.number}, {"answers", answers}};
  if (options.tokens > 0) {
    KVASIR_ASSIGN_OR_RETURN(report["continuation"], write_on(options, text));
  }
  return options.json ? print_json(report) : Status();
}

}  // namespace

void add_demo(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<DemoOptions>();
  options->policies = {"full", "snapkv:budget=512,kernel=15,pool=max", "streaming:cap=512"};
  CLI::App* command =
      program.add_subcommand("demo", "Hide a number in a text, and ask for it under several policies; a minute");
  add_model_option(*command, options->engine.model);
  command->add_option("-t,--threads", options->engine.threads, "Threads; 0: one per core")->capture_default_str();
  command->add_option("-f,--file", options->file, "Text in which the number is hidden")->required()->type_name("FILE");
  command
      ->add_option("--number", options->number, "The number, 1 to 9 digits; the bundled model recalls numbers of five")
      ->capture_default_str();
  command->add_option("--kv", options->policies, "Retention policy; may be repeated, one row each")
      ->take_all()
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--continuation", options->continuation,
                   "Retention policy under which the model writes on from the end of the text")
      ->capture_default_str();
  command->add_option("-n,--tokens", options->tokens, "Tokens to write on; 0: none")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = demo(*options); });
}

}  // namespace kvasir::cli
