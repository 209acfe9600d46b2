// Requests that continue a session, that report log-probabilities piece by piece and of their prompts; plans.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "kvasir/engine.h"
#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "session/session.h"
#include "support/engine_fixture.h"
#include "support/families.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::unique_ptr<Engine> open_engine(std::uint64_t kv_memory = 64 * kMiB) {
  EngineOptions options;
  options.model = small_model();
  options.threads = 1;
  options.kv_memory = kv_memory;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

// The tests of this file run in processes of their own, at the same time.
std::string session_file() {
  return ::testing::TempDir() + "request_extras_" + std::to_string(::getpid());
}

GenerateOptions greedy(std::int64_t tokens) {
  GenerateOptions options;
  options.max_tokens = tokens;
  options.sampling.temperature = 0;
  return options;
}

std::vector<Event> run(Engine& engine) {
  std::vector<Event> all;
  while (engine.unfinished() > 0) {
    Result<std::vector<Event>> events = engine.poll();
    EXPECT_TRUE(events.ok());
    std::move(events->begin(), events->end(), std::back_inserter(all));
  }
  return all;
}

GenerateResult result_of(const std::vector<Event>& events, RequestId id) {
  for (const Event& event : events)
    if (event.request == id && event.kind == Event::Kind::kFinished) return event.result;
  ADD_FAILURE() << "the request has not finished";
  return {};
}

// Only the requests of models that see all tokens in all layers drop thoughts; the refusal comes before any text.
TEST(DroppedThoughts, AreRefusedWhereTheyCannotBe) {
  const std::string policy = "full:thoughts=drop";
  const auto engine = open_engine();
  const Status session = engine->new_session({.policy = policy}).status();
  EXPECT_EQ(session.code(), StatusCode::kUnsupported);
  EXPECT_NE(session.message().find("thoughts=drop"), std::string::npos) << session.message();
  EXPECT_TRUE(engine->plan({.policy = policy, .prompt = 10}).ok());
  for (const FamilyCase& family : family_cases()) {
    const TemporaryFile file(make_random_model(family.spec));
    EngineOptions options;
    options.model = file.path();
    options.threads = 1;
    options.kv_memory = 64 * kMiB;
    const auto other = Engine::open(options);
    ASSERT_TRUE(other.ok()) << other.status().message();
    const Result<RequestPlan> plan = (*other)->plan({.policy = policy, .prompt = 10});
    EXPECT_EQ(plan.ok(), family.spec.sliding_window == 0) << family.name;
    RequestOptions request;
    request.policy = policy;
    request.tokens = {5, 6, 7};
    request.generate = greedy(2);
    const Result<RequestId> id = (*other)->submit(request);
    EXPECT_EQ(id.ok(), plan.ok()) << family.name;
    if (plan.ok()) continue;
    EXPECT_EQ(plan.status().settings(), std::vector<std::string_view>{"thoughts"});
    EXPECT_EQ(id.status().message(), plan.status().message());
  }
}

class SessionRequests : public ::testing::TestWithParam<const char*> {};

// Turn by turn through requests, saved and loaded in between, beside other requests: the texts of Session's own calls.
TEST_P(SessionRequests, GiveTheAnswersOfTheSessionsOwnCalls) {
  const std::vector<Message> turns = {
      {"user", "Tell me a story of a fox."}, {"user", "And then?"}, {"user", "The end?"}};
  std::vector<std::string> want;
  {
    const auto engine = open_engine();
    const auto session = *engine->new_session({.policy = GetParam()});
    for (const Message& turn : turns) {
      ASSERT_TRUE(session->say(turn.role, turn.content).ok());
      want.push_back(session->generate(greedy(15), {})->text);
    }
  }
  const std::string path = session_file();
  const auto engine = open_engine();
  std::shared_ptr<Session> session = *engine->new_session({.policy = GetParam()});
  for (std::size_t i = 0; i < turns.size(); ++i) {
    RequestOptions options;
    options.messages = {turns[i]};
    options.generate = greedy(15);
    options.session = session;
    RequestOptions other;
    other.prompt = "The old man went down to the river and there he sat.";
    other.generate = greedy(30);
    ASSERT_TRUE(engine->submit(other).ok());
    const Result<RequestId> id = engine->submit(options);
    ASSERT_TRUE(id.ok()) << id.status().message();
    options.session.reset();
    EXPECT_EQ(result_of(run(*engine), *id).text, want[i]) << "turn " << i;
    ASSERT_TRUE(session->save(path).ok());
    session.reset();
    session = std::move(engine->load_session(path)->session);
  }
  std::filesystem::remove(path);
}

struct Crowded {
  std::string text;
  int preemptions = 0;  // of the session's request
  FinishReason reason = FinishReason::kEnd;
};

// A session's request among others that arrive before and behind it, and then the session's own next answer.
Crowded run_crowd(const std::shared_ptr<LoadedModel>& model, const std::string& policy, std::uint64_t memory) {
  const auto runner = std::make_shared<BatchRunner>(model, *new_cache(model, memory));
  const std::shared_ptr<Session> session = make_session(runner, *make_policy(policy));
  auto* base = dynamic_cast<SessionBase*>(session.get());
  EXPECT_TRUE(session->say("user", "Tell me a story of a fox and a crow, and of the cheese.").ok());
  EXPECT_TRUE(session->generate(greedy(20), {}).ok());
  RequestQueue queue(runner);
  const auto add_other = [&](int number) {
    RequestOptions other;
    other.prompt = "The old man went down to the river, number " + std::to_string(number);
    other.generate = greedy(120);
    other.generate.ignore_eos = true;
    queue.add(other, *encode_request(*model, other), *make_policy("full"));
  };
  for (int i = 0; i < 3; ++i) add_other(i);
  RequestOptions options;
  options.messages = {{"user", "And then?"}};
  options.generate = greedy(60);
  options.generate.ignore_eos = true;
  options.session = session;
  options.priority = 5;  // the first to give way
  const RequestId id = queue.add(options, *base->begin(options), *make_policy(policy), base->held().chunk);
  for (int i = 3; i < 5; ++i) add_other(i);
  Crowded result;
  bool held = false;
  while (queue.unfinished() > 0) {
    for (const auto events = queue.poll(); const Event& event : *events)
      if (event.request == id && event.kind == Event::Kind::kFinished) {
        result.text = event.result.text;
        result.reason = event.result.finish_reason;
        EXPECT_EQ(session->kv().seen, event.result.kv.seen);
      }
    const bool holds = queue.sequence_of(id, 0) != nullptr;
    result.preemptions += held && !holds && result.text.empty() ? 1 : 0;
    held = holds;
  }
  result.text += "|" + session->generate(greedy(5), {})->text;
  return result;
}

// A pool too small for all makes the session's request give up its pages, and begin again from the session.
TEST_P(SessionRequests, KeepTheirBitsWhenTheyGiveUpTheirPages) {
  const auto model = load(small_model(), {.threads = 1});
  const Crowded want = run_crowd(model, GetParam(), 64 * kMiB);
  EXPECT_EQ(want.reason, FinishReason::kLength);
  EXPECT_EQ(want.preemptions, 0);
  const auto runner = std::make_shared<BatchRunner>(model, *new_cache(model, 64 * kMiB));
  const std::uint64_t page_column = KvCache::cost(runner->cache()->shape(), {}, 1);
  int preemptions = 0;
  for (std::uint64_t columns = 16; columns <= 40; columns += 3) {
    const Crowded got = run_crowd(model, GetParam(), columns * page_column);
    preemptions += got.preemptions;
    if (got.reason == FinishReason::kLength) {
      EXPECT_EQ(got.text, want.text) << columns;
    }
  }
  EXPECT_GT(preemptions, 0) << "it never gave up its pages: this shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Policies, SessionRequests,
                         ::testing::Values("full", "streaming:sinks=4,window=60", "h2o:budget=64"));

TEST(SessionRequest, LeavesTheSessionAloneIfItIsCancelled) {
  const auto engine = open_engine();
  std::shared_ptr<Session> session = *engine->new_session({.policy = "streaming:sinks=4,window=60"});
  ASSERT_TRUE(session->read("Once upon a time").ok());
  const std::int64_t before = session->kv().seen;
  RequestOptions options;
  options.prompt = std::string(3000, 'x');
  options.session = session;
  const Result<RequestId> id = engine->submit(options);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(engine->poll().ok());
  ASSERT_TRUE(engine->cancel(*id).ok());
  run(*engine);
  EXPECT_EQ(session->kv().seen, before);
  const auto fresh = open_engine();
  const auto other = *fresh->new_session({.policy = "streaming:sinks=4,window=60"});
  ASSERT_TRUE(other->read("Once upon a time").ok());
  EXPECT_EQ(session->generate(greedy(10), {})->text, other->generate(greedy(10), {})->text);
}

// Prefixes that requests left hold all memory; a session that is loaded comes first.
TEST(SessionRequest, ALoadedSessionTakesTheRoomOfCachedPrefixes) {
  const std::string path = session_file();
  EngineOptions engine_options;
  engine_options.model = small_model();
  engine_options.threads = 1;
  engine_options.kv_memory = 4 * kMiB;
  engine_options.prefix_memory = 4 * kMiB;
  const Result<std::unique_ptr<Engine>> opened = Engine::open(engine_options);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const std::unique_ptr<Engine>& engine = *opened;
  {
    const Result<std::unique_ptr<Session>> made = engine->new_session({.policy = "full"});
    ASSERT_TRUE(made.ok()) << made.status().message();
    const std::unique_ptr<Session>& session = *made;
    std::string text;
    for (int i = 0; i < 40; ++i) text += "The old man went down to the river. ";
    ASSERT_TRUE(session->read(text).ok());
    ASSERT_TRUE(session->save(path).ok());
  }
  const auto size = std::filesystem::file_size(path);
  for (int i = 0; i < 200 && engine->cache().budget - engine->cache().bytes >= size; ++i) {
    RequestOptions options;
    options.policy = "full";
    options.prompt = std::to_string(i);
    for (int k = 0; k < 20; ++k) options.prompt += " a fox and a crow number " + std::to_string(i * 20 + k);
    options.generate = greedy(1);
    ASSERT_TRUE(engine->submit(options).ok());
    run(*engine);
  }
  ASSERT_LT(engine->cache().budget - engine->cache().bytes, size) << "there is room anyway: this shows nothing";
  EXPECT_TRUE(engine->load_session(path).ok()) << engine->load_session(path).status().message();
  std::filesystem::remove(path);
}

TEST(SessionRequest, IsChecked) {
  const auto engine = open_engine(), stranger = open_engine();
  RequestOptions options;
  options.prompt = "x";
  options.session = *stranger->new_session({.policy = "full"});
  ASSERT_TRUE(engine->new_session({.policy = "full"}).ok());
  EXPECT_EQ(engine->submit(options).status().settings().front(), "session");
  options.session = *engine->new_session({.policy = "full"});
  options.policy = "streaming:window=60";
  EXPECT_EQ(engine->submit(options).status().settings().front(), "policy");
  options.policy = "full";
  options.samples = 2;
  EXPECT_EQ(engine->submit(options).status().settings().front(), "samples");
  options.samples = 1;
  EXPECT_TRUE(engine->submit(options).ok());
  run(*engine);
}

TEST(LogProbabilities, ComeWithTheTextTheyBelongTo) {
  const auto engine = open_engine();
  RequestOptions options;
  options.prompt = "Once upon a time";
  options.generate = greedy(30);
  options.generate.logprobs = 1;
  ASSERT_TRUE(engine->submit(options).ok());
  const std::vector<Event> events = run(*engine);
  std::vector<std::int32_t> told;
  std::string bytes;
  int pieces = 0;
  for (const Event& event : events) {
    for (const GeneratedToken& token : event.choices) told.push_back(token.token.id);
    if (event.kind != Event::Kind::kText) continue;
    pieces += event.choices.empty() ? 0 : 1;
    EXPECT_EQ(event.done, std::ssize(told));
  }
  const std::vector<GeneratedToken>& all = events.back().result.choices;
  ASSERT_EQ(told.size(), all.size());
  for (std::size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], all[i].token.id);
  EXPECT_GT(pieces, 5);
}

// The probabilities of a prompt's tokens are those with which they would have been generated, however it is read.
TEST(LogProbabilities, OfAPromptAreThoseOfItsGeneration) {
  const auto engine = open_engine();
  RequestOptions options;
  options.policy = "full";
  options.prompt = "Once upon a time";
  options.generate = greedy(70);
  options.generate.ignore_eos = true;
  options.generate.logprobs = 2;
  Result<RequestId> id = engine->submit(options);
  ASSERT_TRUE(id.ok());
  const GenerateResult generated = result_of(run(*engine), *id);
  RequestOptions again;
  again.policy = "full";
  again.tokens = engine->text().encode_prompt(options)->tokens;
  const std::size_t prompt = again.tokens.size();
  for (const GeneratedToken& token : generated.choices) again.tokens.push_back(token.token.id);
  again.generate = greedy(0);
  again.generate.prompt_logprobs = 2;
  id = engine->submit(again);
  ASSERT_TRUE(id.ok());
  const GenerateResult read = result_of(run(*engine), *id);
  ASSERT_EQ(read.prompt_choices.size(), again.tokens.size() - 1);
  for (std::size_t i = 0; i < generated.choices.size(); ++i) {
    const GeneratedToken& want = generated.choices[i];
    const GeneratedToken& got = read.prompt_choices[prompt - 1 + i];
    EXPECT_EQ(got.token.id, want.token.id);
    EXPECT_EQ(got.token.log_probability, want.token.log_probability);  // one arithmetic: to the bit
    ASSERT_EQ(got.likeliest.size(), 2u);
    EXPECT_EQ(got.likeliest[1].id, want.likeliest[1].id);
  }
}

TEST(RequestPlans, AreWhatARequestTakes) {
  const auto engine = open_engine();
  for (const char* policy : {"full", "streaming:sinks=4,window=60"}) {
    const Result<RequestPlan> plan = engine->plan({.policy = policy, .prompt = 200, .max_tokens = 40});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->refusal.ok());
    RequestOptions options;
    options.policy = policy;
    options.tokens.assign(200, 100);
    options.generate = greedy(40);
    options.generate.ignore_eos = true;
    const Result<RequestId> id = engine->submit(options);
    ASSERT_TRUE(id.ok());
    EXPECT_EQ(result_of(run(*engine), *id).kv.bytes_peak, plan->bytes) << policy;
    EXPECT_TRUE(plan->exact);
  }
}

// Samples share the whole pages of the prompt: with a budget of what is planned they run at once, nobody preempted.
TEST(RequestPlans, CountTheWholePagesOfAPromptOnce) {
  const int samples = 4;
  const PlanRequest request{.policy = "full", .prompt = 400, .max_tokens = 40, .samples = samples};
  const auto large = open_engine();
  const Result<RequestPlan> plan = large->plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  PlanRequest one = request;
  one.samples = 1;
  const std::uint64_t alone = large->plan(one)->bytes;
  EXPECT_LT(plan->bytes, 2 * alone) << "as 400 tokens of 440 are shared";
  EXPECT_GT(plan->bytes, alone + alone / 10);
  EXPECT_EQ(plan->bytes, plan->pages * plan->page_bytes + plan->table_bytes + plan->policy_bytes);

  RequestOptions options;
  options.policy = "full";
  options.samples = samples;
  options.tokens.assign(400, 100);
  options.generate = greedy(40);
  options.generate.ignore_eos = true;
  const Result<RequestId> id = large->submit(options);
  ASSERT_TRUE(id.ok());
  std::uint64_t most = 0;
  do {
    ASSERT_TRUE(large->poll().ok());
    most = std::max(most, large->report().request_bytes);
  } while (large->report().running + large->report().waiting > 0);
  EXPECT_LE(most, plan->bytes);
  EXPECT_GT(most, plan->bytes - plan->bytes / 8);
}

// Whatever the codec and the lengths: no less than one sample takes, and no more than as many that share nothing.
TEST(RequestPlans, OfSamplesAreBetweenOneAndAsManyThatShareNothing) {
  EngineOptions options{.model = small_model(), .threads = 1, .kv_memory = 64 * kMiB};
  options.kv_types = {"f16", "q4", "k=q8,v=q2,recent=64"};
  const auto engine = std::move(*Engine::open(options));
  ASSERT_TRUE(engine->new_session({.policy = "full"}).ok());
  for (const std::string& codec : options.kv_types)
    for (const char* policy : {"full", "streaming:sinks=4,window=60", "snapkv:budget=64", "h2o:budget=64"})
      for (const std::int64_t prompt : {1, 31, 33, 200, 450})
        for (const std::int64_t more : {0, 1, 40}) {
          SCOPED_TRACE(codec + " " + policy + " " + std::to_string(prompt) + "+" + std::to_string(more));
          PlanRequest request{.policy = policy, .codec = codec, .prompt = prompt, .max_tokens = more};
          const std::uint64_t one = engine->plan(request)->bytes;
          request.samples = 5;
          const Result<RequestPlan> plan = engine->plan(request);
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          EXPECT_GE(plan->bytes, one);
          EXPECT_LE(plan->bytes, 5 * one);
          EXPECT_EQ(plan->bytes, plan->pages * plan->page_bytes + plan->open_pages * plan->open_page_bytes +
                                     plan->table_bytes + plan->policy_bytes);
        }
}

// What a policy demotes grows with the text: a short one runs where one of the whole context has no room.
TEST(RequestPlans, DemotingRequestsAreHeldToTheirOwnLength) {
  const std::string policy = "streaming:sinks=4,window=28@demote=q4";
  const std::uint64_t context = open_engine()->plan({.policy = policy, .prompt = 400, .max_tokens = 10})->bytes;
  const auto engine = open_engine(context / 2);
  ASSERT_TRUE(engine->new_session({.policy = "streaming:sinks=4,window=28"}).ok());
  EXPECT_FALSE(engine->plan({.policy = policy, .prompt = 400, .max_tokens = 10})->refusal.ok());
  const Result<RequestPlan> plan = engine->plan({.policy = policy, .prompt = 60, .max_tokens = 10});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(plan->refusal.ok()) << plan->refusal.message();
  RequestOptions options;
  options.policy = policy;
  options.tokens.assign(60, 100);
  options.generate = greedy(10);
  options.generate.ignore_eos = true;
  const Result<RequestId> id = engine->submit(options);
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_LE(result_of(run(*engine), *id).kv.bytes_peak, plan->bytes);
  options.tokens.assign(400, 100);
  const Result<RequestId> whole = engine->submit(options);
  EXPECT_EQ(whole.status().code(), StatusCode::kResourceExhausted);
  // A prompt that a plan refuses is refused, and no other.
  for (std::int64_t tokens = 40; tokens <= 400; tokens += 20) {
    options.tokens.assign(static_cast<std::size_t>(tokens), 100);
    const auto planned = engine->plan({.policy = policy, .prompt = tokens, .max_tokens = 0});
    EXPECT_EQ(planned->refusal.ok(), engine->submit(options).ok()) << tokens << ": " << planned->refusal.message();
  }
}

TEST(RequestPlans, SayHowMuchHasRoom) {
  const auto engine = open_engine(1 * kMiB);
  ASSERT_TRUE(engine->new_session({.policy = "full"}).ok());
  const Result<RequestPlan> plan = engine->plan({.policy = "full", .prompt = 20});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_FALSE(plan->endless);
  EXPECT_EQ(plan->max_tokens, plan->most_tokens);
  EXPECT_LE(plan->bytes, plan->budget);
  const Result<RequestPlan> more = engine->plan({.policy = "full", .prompt = 20, .max_tokens = plan->most_tokens + 1});
  ASSERT_TRUE(more.ok());
  EXPECT_FALSE(more->refusal.ok());
  EXPECT_TRUE(engine->plan({.policy = "full", .prompt = 20, .max_tokens = plan->most_tokens})->refusal.ok());
  EXPECT_TRUE(engine->plan({.policy = "streaming:sinks=4,window=20", .prompt = 20})->endless);
  EXPECT_FALSE(engine->plan({.policy = "nonsense", .prompt = 20}).ok());
  EXPECT_FALSE(engine->plan({.policy = "full", .prompt = 0}).ok());
  EXPECT_FALSE(engine->plan({.policy = "full", .prompt = 1 << 20})->refusal.ok());
}

}  // namespace
}  // namespace kvasir::test
