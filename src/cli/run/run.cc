// kvasir run: continues a text, or chats.
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <initializer_list>
#include <optional>

#include "base/input_text.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/chat/chat.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/run/answer.h"
#include "cli/run/documents.h"
#include "cli/run/grammar_options.h"
#include "cli/run/parts.h"
#include "cli/run/run_help.h"
#include "cli/run/run_options.h"
#include "cli/run/sampling_options.h"
#include "cli/signals.h"
#include "cli/text_input.h"
#include "retention/registry.h"
#include "scheduler/task.h"
#include "text/tokenizer.h"

namespace kvasir::cli {
namespace {

// Limit without -n, for output that is printed only once complete.
constexpr std::int64_t kMostUnasked = 1024;

constexpr std::int64_t kLeastContext = 5;  // least -c: four sinks and a window
constexpr std::int64_t kMostContext = std::int64_t{1} << 40;

// Refuses options that exclude each other, and options without effect.
Status check_options(const RunOptions& options) {
  const bool several = options.samples > 1 || options.beams > 0;
  if (options.samples < 1 || options.samples > kMostSamples)
    return invalid_argument("--samples {} is outside 1 to {}", options.samples, kMostSamples);
  if (options.beams < 0 || options.beams > kMostSamples)
    return invalid_argument("--beams {} is outside 1 to {} (0: none)", options.beams, kMostSamples);
  if (options.generate.logprobs >= 0 && !options.json)
    return invalid_argument("--logprobs is for JSON; give --json too");
  if (options.generate.logprobs >= 0 && options.beams > 0)
    return invalid_argument("--logprobs is of tokens that are drawn; omit it, or --beams");
  if (options.samples > 1 && options.beams > 0)
    return invalid_argument("--samples and --beams exclude each other; omit one of them");
  if (options.beams > 0 && options.generate.max_tokens < 1)
    return invalid_argument("--beams needs a number of tokens; give -n, 1 or more");
  if (options.beams > 0 && !options.sampling_options.empty())
    return invalid_argument("--beams does not sample; omit the sampling options (--temp, --top-k, --seed, ...)");
  if (options.beams > 0 && !options.generate.stop.empty())
    return invalid_argument("--beams does not support stop strings; omit --stop");
  if (options.generate.include_stop && options.generate.stop.empty())
    return invalid_argument("--include-stop is about the string of --stop; give that too");
  if (options.beams > 0 && limits_tokens(options.generate))
    return invalid_argument(
        "--beams does not support --min-tokens, --stop-token-ids, --allowed-token-ids and --bad-words; omit them");
  if (options.beams > 0 && options.grammar.given())
    return invalid_argument("--beams does not support grammars; omit --json-schema, --grammar, --regex and --choice");
  if (options.generate.thought_budget >= 0 && (options.beams > 0 || options.grammar.given()))
    return invalid_argument("--thinking-budget does not go with --beams or a grammar; omit one of them");
  if (options.parts && options.grammar.given())
    return invalid_argument("--parts asks several questions, of which a grammar would restrict each; omit one of them");
  if (options.beams == 0 && options.length_penalty != BeamOptions{}.length_penalty)
    return invalid_argument("--length-penalty scores beams; give --beams too");
  if (options.samples > 1 && !options.sampling_options.empty() && options.generate.sampling.temperature == 0)
    return invalid_argument("--samples draws, and with --temp 0 all samples would be the same; omit one of them");
  if (!options.sampling_options.empty())
    KVASIR_RETURN_IF_ERROR(check_seeds(options.generate.sampling.seed, options.samples));
  if (several && !options.save.empty())
    return invalid_argument("--save keeps one continuation; omit --samples and --beams");
  if (!options.load.empty() && options.engine_given)
    return invalid_argument(
        "--load takes policy, page type, page size and chunk from the file; omit --kv, --kv-type, --page and --chunk");
  if (!options.load.empty() && !options.demote.empty())
    return invalid_argument("--load takes the policy from the file, which demotes nothing; omit --demote");
  if (!options.load.empty() && options.context != 0)
    return invalid_argument("--load takes what is kept from the file; omit -c");
  if (options.parts && (options.files.empty() || !options.prompt))
    return invalid_argument("--parts goes through a document; give it with -f, and a question with -p");
  if (options.parts && (several || options.json || !options.save.empty() || !options.load.empty()))
    return invalid_argument(
        "--parts prints one answer after another; omit --json, --samples, --beams, --save and --load");
  if (options.raw && options.chat) return invalid_argument("--raw and --chat exclude each other; omit one of them");
  if (options.raw && !options.prompt && options.files.empty())
    return invalid_argument("--raw continues a text; give one with -p or -f");
  if (options.context < 0 || (options.context > 0 && options.context < kLeastContext) || options.context > kMostContext)
    return invalid_argument("-c {} is outside {} to 2^40 tokens (0: the trained context)", options.context,
                            kLeastContext);
  return {};
}

// A loaded session goes on with its own adapters, so those of --lora must be the same.
Status check_adapters(const std::vector<AdapterFile>& given, const std::vector<AdapterScale>& own) {
  std::string saved;
  for (const AdapterScale& each : own) {
    const std::string& path = given[static_cast<std::size_t>(each.id)].path;
    saved += fmt::format("{} --lora {}:{}", saved.empty() ? "" : ",", printable(path, 100), each.scale);
  }
  const auto used = std::ranges::count_if(given, [](const AdapterFile& file) { return file.scale != 0; });
  const bool same = std::ranges::all_of(
      own, [&](const AdapterScale& each) { return given[static_cast<std::size_t>(each.id)].scale == each.scale; });
  if (same && used == std::ssize(own)) return {};
  return invalid_argument("--load goes on with what the session was saved with:{}; give that",
                          saved.empty() ? " no adapter (omit --lora)" : saved);
}

// Checks, before anything runs, that the session can be saved and replaces no input except a session file.
Status check_save(const RunOptions& options, bool reads_input) {
  if (options.save.empty()) return {};
  std::vector<std::string> inputs = {options.engine.model, options.chat_template};
  for (const std::string& file : options.files)
    if (file != "-") inputs.push_back(file);
  if (reads_input) inputs.emplace_back("/dev/stdin");
  if (const Result<PolicySpec> spec = PolicySpec::parse(options.session.policy); spec.ok())  // the engine says why not
    KVASIR_RETURN_IF_ERROR(check_saveable(*spec));
  return check_session_output(options.save, inputs);
}

// Returns whether the command holds a conversation: there is no prompt, and standard input is a terminal. With --chat
// and files only if the one answer is not expected in a file or a pipe.
bool is_conversation(const RunOptions& options) {
  if (options.prompt || ::isatty(STDIN_FILENO) == 0) return false;
  if (options.files.empty()) return options.load.empty() || options.chat;
  return options.chat && ::isatty(STDOUT_FILENO) != 0 && !options.json && options.samples == 1 && options.beams == 0 &&
         std::ranges::count(options.files, "-") == 0;
}

// Takes settings without an option from the model's file.
void use_recommended(const SamplingOptions& recommended, RunOptions& options) {
  SamplingOptions& sampling = options.generate.sampling;
  const auto take = [&](const char* option, auto SamplingOptions::*setting) {
    if (!options.sampling_options.contains(option)) sampling.*setting = recommended.*setting;
  };
  take("--temp", &SamplingOptions::temperature);
  take("--top-k", &SamplingOptions::top_k);
  take("--top-p", &SamplingOptions::top_p);
  take("--min-p", &SamplingOptions::min_p);
  take("--repeat-penalty", &SamplingOptions::repetition_penalty);
}

// Returns the marks of thoughts in answers to a user.
Result<std::shared_ptr<const ThoughtMarks>> thought_marks(const Engine& engine) {
  RequestOptions question;
  question.messages = {{"user", "?"}};
  KVASIR_ASSIGN_OR_RETURN(PromptTokens prompt, engine.text().encode_prompt(question));
  if (prompt.thoughts == nullptr)
    return unsupported("the model's chat template writes no thoughts; leave --thinking-budget out");
  return std::move(prompt.thoughts);
}

// Returns whether standard input has data that the command does not read: a pipe or socket with bytes in it, or a file
// at its start. A file read in part belongs to something else, such as a shell loop.
bool ignores_input() {
  struct stat input {};
  if (::fstat(STDIN_FILENO, &input) != 0) return false;
  if (S_ISREG(input.st_mode)) return input.st_size > 0 && ::lseek(STDIN_FILENO, 0, SEEK_CUR) == 0;
  int bytes = 0;
  return (S_ISFIFO(input.st_mode) || S_ISSOCK(input.st_mode)) && ::ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 &&
         bytes > 0;
}

Status run(RunOptions options) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  if (options.context > 0 && options.session.policy.empty()) {
    options.session.policy = fmt::format("streaming:cap={}", options.context);
  } else if (options.context > 0) {
    Result<PolicySpec> spec = PolicySpec::parse(options.session.policy);
    if (spec.ok()) spec = with_size(std::move(*spec), options.context);
    if (!spec.ok()) return spec.status().with_message("-c: " + spec.status().message());
    options.session.policy = spec->text();
  }
  KVASIR_RETURN_IF_ERROR(apply_demote(options.demote, options.session.policy, options.engine));
  const auto stdins = std::ranges::count(options.files, "-");
  if (stdins > 1) return invalid_argument("--file - is given more than once; standard input can be read once");
  const Status empty = invalid_argument("the prompt is empty; give some text with -p or -f");
  if (options.prompt && options.prompt->empty()) return empty;
  const bool loads = !options.load.empty();
  const bool chat = is_conversation(options);
  if (!chat && !options.chat)
    for (const auto& [name, value] :
         {std::pair(options.system_option.c_str(), &options.system), {"--chat-template", &options.chat_template}})
      if (!value->empty()) return invalid_argument("{} is for a chat; add --chat", name);
  if (!chat && !options.chat && !options.engine.template_arguments.empty())
    return invalid_argument("--template-arg is for a chat; add --chat");
  if (chat && options.json) return invalid_argument("--json needs a prompt: give -p, -f or standard input");
  if (chat && (options.samples > 1 || options.beams > 0))
    return invalid_argument("--samples and --beams need a prompt: give -p, -f or standard input");
  const bool reads_input = stdins > 0 || (options.files.empty() && !options.prompt && !chat && !loads);
  KVASIR_RETURN_IF_ERROR(check_save(options, chat || reads_input));
  std::vector<std::string> files = options.files;
  if (reads_input && files.empty()) files.emplace_back("-");
  InputText mapped;    // a single file, which may be large
  std::string joined;  // several files, or one with a question
  std::optional<std::string_view> prompt = options.prompt;
  if (files.size() == 1 && !options.prompt && !chat) {
    KVASIR_ASSIGN_OR_RETURN(mapped, InputText::open(files.front(), kMaxTextBytes));
    KVASIR_ASSIGN_OR_RETURN(prompt, text_in(mapped.text(), files.front()));
  } else if (!files.empty()) {
    KVASIR_ASSIGN_OR_RETURN(joined, read_documents(files, options.parts ? std::nullopt : options.prompt));
    prompt = joined;
  }
  if (prompt && prompt->empty()) return empty;
  EngineOptions engine_options = options.engine;
  KVASIR_ASSIGN_OR_RETURN(engine_options.chat_template, read_chat_template(options.chat_template));
  std::unique_ptr<Engine> engine;
  {
    ProgressBar bar("loading");
    KVASIR_ASSIGN_OR_RETURN(engine, Engine::open(engine_options, [&](std::uint64_t done, std::uint64_t total) {
                              bar.update(done >> 20, total >> 20, "MiB");
                            }));
  }
  if (!reads_input && !chat && ignores_input())
    note("kvasir: standard input is not read, as {} is given; add '-f -' to put it in front\n", options.prompt ? "-p"
                                                                                                : loads ? "--load"
                                                                                                        : "-f");
  // Chat models rarely continue a bare question usefully.
  if (options.prompt && !options.chat && !options.raw && !loads && engine->model().chat_template == "jinja") {
    options.chat = true;
    note("kvasir: this model chats, so the prompt is said as a user's message; --raw continues it as text\n");
  }
  // No user stops an answer that goes to a file.
  if (options.chat && !chat && !options.tokens_given && ::isatty(STDOUT_FILENO) == 0)
    options.generate.max_tokens = kMostUnasked;
  if (options.grammar.given()) {
    KVASIR_ASSIGN_OR_RETURN(const GrammarSource source, grammar_source(options.grammar));
    Result<std::shared_ptr<const Grammar>> grammar = engine->text().compile(source);
    if (!grammar.ok()) return unsupported("{}", grammar.status().message());  // what is too large is wrong, too
    options.generate.grammar = std::move(*grammar);
  }
  if (options.generate.thought_budget >= 0) {
    if (!chat && !options.chat) return invalid_argument("--thinking-budget is for a chat; add --chat");
    KVASIR_ASSIGN_OR_RETURN(options.generate.thoughts, thought_marks(*engine));
  }
  note_kv_memory(options.engine.kv_memory);
  note_slow_kernels(options.engine.isa, engine->model().isa);
  if (!options.session.policy.empty()) note_policy(options.session.policy, engine->model().kv_heads);
  use_recommended(engine->model().sampling, options);
  const int several = std::max(options.samples, options.beams);
  // In a chat the second sequence is the state before the last answer, for /again.
  options.session.sequences = chat ? 2 : several > 1 ? several + 1 : 1;
  std::unique_ptr<Session> session;
  if (loads) {
    KVASIR_ASSIGN_OR_RETURN(Engine::LoadedSession loaded,
                            engine->load_session(options.load, options.session.sequences));
    session = std::move(loaded.session);
    if (loaded.other_arithmetic)
      note("kvasir: {} was written by other kernels: the tokens to come may differ from what they would have been\n",
           printable(options.load, 200));
    options.generate.resume = options.sampling_options.empty();
    KVASIR_RETURN_IF_ERROR(check_adapters(options.engine.lora, loaded.adapters));
  } else {
    if (options.chat || chat) options.session.protect = protected_tokens(*engine, options.system);
    if (options.parts) {
      catch_interrupts();
      return run_parts(options, *engine, *prompt);
    }
    KVASIR_ASSIGN_OR_RETURN(session, engine->new_session(options.session));
    note_partly_protected(session->kv().policy, options.session.protect);
  }
  if (engine->model().pre_tokenizer_assumed)
    note(
        "kvasir: the file names no pre-tokenizer (tokenizer.ggml.pre); GPT-2's is assumed, which may cut text "
        "wrongly\n");
  catch_interrupts();
  if (chat) return kvasir::cli::chat(options, *engine, std::move(session), std::string(prompt.value_or("")));
  return run_once(options, *engine, *session, prompt);
}

}  // namespace

void add_run(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = program.add_subcommand("run", "Continue a text, or chat; in bounded memory");
  options->engine.kv_type = "auto";
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  add_chunk_option(*command, options->engine);
  command->add_option("-p,--prompt", options->prompt,
                      "Text to continue or, with --chat or a model that chats, to answer; stands behind the files");
  command
      ->add_option("-f,--file", options->files,
                   "File with text to continue, or with -p to ask about; may be repeated; -: standard input")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("FILE");
  command
      ->add_option(
          "-n,--tokens", options->generate.max_tokens,
          fmt::format("Tokens to generate; -1: until the text ends; with --json, --samples and answers that go to no "
                      "terminal {} unless given",
                      kMostUnasked))
      ->capture_default_str();
  command->add_flag("--chat", options->chat,
                    "Say the text as a user's message and end after the answer; without -p, on a terminal: "
                    "a chat about the files");
  command->add_flag("--parts", options->parts,
                    "Ask -p of -f part by part, each as long as the context holds, and then of all answers together");
  command->add_flag("--raw", options->raw,
                    "Continue -p as text, also with a model that chats; otherwise such a model answers it");
  CLI::Option* system = command->add_option("--system", options->system, "System message at the start of a chat");
  auto system_file = std::make_shared<std::string>();
  command->add_option("--system-file", *system_file, "File with the system message")
      ->excludes(system)
      ->type_name("FILE");
  add_chat_template_option(*command, options->chat_template);
  add_template_arg_option(*command, options->engine.template_arguments);
  const CLI::Option* kv =
      add_policy_option(*command, options->session.policy,
                        "Retention policy (see 'kvasir policies'); default: everything until the trained context or "
                        "--kv-memory is full, then streaming")
          ->envname("KVASIR_KV");
  add_demote_options(*command, options->demote, options->engine);
  command
      ->add_option("-c,--ctx", options->context,
                   "Tokens kept: the size of the policy of --kv, else of streaming; 0: the trained context")
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->generate.ignore_eos, "Go on when the model ends its text");
  add_draft_option(*command, options->generate.draft, options->engine.draft_model);
  command
      ->add_option("--stop", options->generate.stop,
                   "End before this string, in which \\n, \\t, \\r, \\\\ and \\xHH are escapes; may be repeated")
      ->transform(CLI::Validator(
          [](std::string& text) {
            const Result<std::string> plain = unescaped(text);
            if (plain.ok()) text = *plain;
            return plain.status().message();
          },
          ""))
      ->take_all()
      ->allow_extra_args(false);
  add_ending_options(*command, options->generate);
  add_grammar_options(*command, options->grammar);
  command
      ->add_option("--thinking-budget", options->generate.thought_budget,
                   "In a chat: most tokens of thoughts, which are then closed so that the answer follows; -1: no limit")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output instead of the text");
  command->add_flag("--json-stream", options->json_stream,
                    "One JSON object a line: {\"text\": ...} for each piece as it comes, at the end that of --json");
  command->add_option("--logprobs", options->generate.logprobs,
                      "With JSON: log-probabilities of each token and of this many of the likeliest in its place");
  command->add_option("--samples", options->samples, "Continuations to sample side by side; sample i has seed + i")
      ->capture_default_str();
  command->add_option("--beams", options->beams, "Beams of a beam search, best first; 0: no beam search")
      ->capture_default_str();
  command
      ->add_option("--length-penalty", options->length_penalty,
                   "A beam's score is its log probability over its tokens to this power")
      ->capture_default_str();
  command->add_option("--save", options->save, "Write the session to this file after the run");
  command->add_option("--load", options->load, "Continue the session of this file, with or without a prompt");
  add_sampling_options(*command, options->generate.sampling);
  arrange_help(*command);
  command->callback([options, command, kv, system_file, &outcome] {
    const auto given = [&](std::initializer_list<const char*> names) {
      return std::ranges::any_of(names,
                                 [&](const char* name) { return outcome.line.gives(*command->get_option(name)); });
    };
    options->json = options->json || options->json_stream;
    for (const char* name : kSamplingOptions)
      if (given({name})) options->sampling_options.insert(name);
    options->tokens_given = given({"--tokens"});
    // Output that is printed only once complete must be bounded.
    if (!options->tokens_given && (options->json || options->samples > 1)) options->generate.max_tokens = kMostUnasked;
    options->engine_given = given({"--kv", "--kv-type", "--page", "--chunk"});
    for (const char* name : {"--save", "--load"})
      if (command->count(name) > 0 && (name == std::string_view("--save") ? options->save : options->load).empty()) {
        outcome.status = invalid_argument("{} needs the name of a file", name);
        return;
      }
    // KVASIR_KV is a default, which -c replaces.
    if (options->context != 0 && !outcome.line.gives(*kv)) options->session.policy.clear();
    if (!system_file->empty()) {
      const Result<std::string> message = read_system_file(*system_file);
      if (outcome.status = message.status(); !message.ok()) return;
      options->system = *message;
      options->system_option = "--system-file";
    }
    outcome.status = run(*options);
  });
}

}  // namespace kvasir::cli
