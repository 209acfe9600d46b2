// Kvasir in a program of your own: opens a model, reads a prompt, streams 40 tokens. Several prompts run side by side.
//
//   embed MODEL.gguf                        a prompt of its own
//   embed MODEL.gguf "It was a dark night"  yours, in a session
//   embed MODEL.gguf "It was" "They were"   each a request
//
// Exit codes: 0 done, 1 something failed, 2 no model given.
#include <kvasir/engine.h>

#include <iostream>
#include <map>
#include <string>
#include <string_view>

namespace {

int fail(const kvasir::Status& status) {
  std::cerr << "embed: " << status.message() << "\n";
  return 1;
}

// Submits all prompts, then runs one forward pass after the other for all of them.
int run_requests(kvasir::Engine& engine, int prompts, char** prompt) {
  std::map<kvasir::RequestId, std::string> texts;
  for (int i = 0; i < prompts; ++i) {
    const auto id = engine.submit({.prompt = prompt[i], .policy = "full", .generate = {.max_tokens = 40}});
    if (!id.ok()) return fail(id.status());
    texts[*id] = prompt[i];
  }
  while (engine.unfinished() > 0) {
    const auto events = engine.poll();
    if (!events.ok()) return fail(events.status());
    for (const kvasir::Event& event : *events) {
      if (event.kind == kvasir::Event::Kind::kFailed) return fail(event.status);
      texts[event.request] += event.text;
      if (event.kind == kvasir::Event::Kind::kFinished) std::cout << texts[event.request] << "\n";
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: embed MODEL.gguf [PROMPT...]\n";
    return 2;
  }
  const std::string_view prompt = argc > 2 ? argv[2] : "The old man lit the lamp, and";

  // One model, one budget of KV memory, one set of threads. Every option has a default.
  auto engine = kvasir::Engine::open({.model = argv[1]});
  if (!engine.ok()) return fail(engine.status());

  if (argc > 3) return run_requests(**engine, argc - 2, argv + 2);

  // One context. Without a policy it keeps everything up to the trained context, then the beginning and what is recent.
  auto session = (*engine)->new_session({});
  if (!session.ok()) return fail(session.status());

  if (const kvasir::Status status = (*session)->read(prompt); !status.ok()) return fail(status);
  std::cout << prompt << std::flush;

  // Text comes in pieces of whole characters. Returning false would stop the generation.
  const auto result = (*session)->generate({.max_tokens = 40}, [](std::string_view text) {
    std::cout << text << std::flush;
    return std::cout.good();
  });
  if (!result.ok()) return fail(result.status());

  std::cout << "\n";
  std::cerr << "embed: " << result->tokens << " tokens, ended by " << kvasir::finish_reason_name(result->finish_reason)
            << "; kept " << result->kv.kept << " of " << result->kv.seen << " tokens in " << result->kv.bytes
            << " bytes\n";
  return 0;
}
