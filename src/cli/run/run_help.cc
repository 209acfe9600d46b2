#include "cli/run/run_help.h"

#include <initializer_list>

#include "cli/run/sampling_options.h"

namespace kvasir::cli {

void arrange_help(CLI::App& run) {
  const auto group = [&](const char* name, std::initializer_list<const char*> options) {
    for (const char* option : options) run.get_option(option)->group(name);
  };
  group("Model and machine", {"--model", "--threads", "--isa"});
  group("Text", {"--prompt", "--file", "--parts", "--chat", "--raw", "--system", "--system-file", "--chat-template",
                 "--template-arg"});
  group("Length", {"--tokens", "--min-tokens", "--thinking-budget", "--ignore-eos", "--stop", "--include-stop",
                   "--stop-token-ids"});
  group("Grammar", {"--json-schema", "--grammar", "--regex", "--choice"});
  group("Words", {"--allowed-token-ids", "--bad-words"});
  group("What is kept", {"--kv", "--ctx", "--kv-memory", "--kv-type", "--page", "--chunk"});
  for (const char* option : kSamplingOptions) run.get_option(option)->group("Sampling");
  group("Several continuations", {"--samples", "--beams", "--length-penalty"});
  group("Sessions", {"--save", "--load"});
  group("Output", {"--json", "--json-stream", "--logprobs"});
  run.footer(
      "Examples:\n"
      "  kvasir run model.gguf                                    a conversation, on a terminal\n"
      "  kvasir run model.gguf --chat -f letter.txt -p 'Sum up.'  one answer, about a document\n"
      "  kvasir run model.gguf -f book.txt -n 200 -c 4096         200 tokens more of a book, 4,096 kept");
}

}  // namespace kvasir::cli
