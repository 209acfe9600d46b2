// Sessions in files take part in admission: they hold no memory before their request starts, and count for its tenant
// from then on until they are given up.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "kvasir/engine.h"
#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "session/session.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::unique_ptr<Engine> open_engine(std::uint64_t kv_memory, const SchedulerOptions& scheduler = {},
                                    std::uint64_t prefix_memory = 0) {
  EngineOptions options;
  options.model = small_model();
  options.threads = 1;
  options.kv_memory = kv_memory;
  options.prefix_memory = prefix_memory;
  options.scheduler = scheduler;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE((*engine)->new_session({.policy = "full"}).ok());  // makes the cache
  return std::move(*engine);
}

std::string tale(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) text += "The old man went down to the river number " + std::to_string(i) + ". ";
  return text;
}

GenerateOptions greedy(std::int64_t tokens) {
  GenerateOptions options;
  options.max_tokens = tokens;
  options.ignore_eos = true;
  options.sampling.temperature = 0;
  return options;
}

class SessionFile {
 public:
  explicit SessionFile(const std::string& policy, int sentences = 20) {
    static int count = 0;
    path_ = ::testing::TempDir() + "session_admission_" + std::to_string(::getpid()) + "_" + std::to_string(count++) +
            ".session";
    const auto engine = open_engine(64 * kMiB);
    const auto session = std::move(*engine->new_session({.policy = policy}));
    EXPECT_TRUE(session->read(tale(sentences)).ok());
    EXPECT_TRUE(session->save(path_).ok());
    bytes_ = session->kv().bytes;
    RequestOptions next = next_turn();
    EXPECT_TRUE(session->read(next.prompt).ok());
    const auto answer = session->generate(next.generate, {});
    EXPECT_TRUE(answer.ok());
    text_ = answer->text;
  }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;
  ~SessionFile() { std::filesystem::remove(path_); }

  static RequestOptions next_turn() {
    RequestOptions options;
    options.prompt = " And then";
    options.generate = greedy(24);
    return options;
  }
  RequestOptions open(const Engine& engine) const {
    RequestOptions options = next_turn();
    auto opened = engine.open_session(path_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    options.session = std::move(opened->session);
    options.releases_session = true;
    return options;
  }

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }     // of KV memory
  const std::string& text() const { return text_; }  // of the next turn, alone

 private:
  std::string path_;
  std::uint64_t bytes_ = 0;
  std::string text_;
};

// Runs the engine, and lets go of each session `polls` calls after its request has ended.
struct Runner {
  Engine& engine;
  std::map<RequestId, std::shared_ptr<Session>> sessions = {};
  std::map<RequestId, GenerateResult> results = {};
  int polls = 3;
  std::uint64_t most_used = 0;

  RequestId submit(RequestOptions options) {
    const Result<RequestId> id = engine.submit(options);
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (!id.ok()) return RequestId{};
    if (options.session != nullptr) sessions[*id] = std::move(options.session);
    return *id;
  }
  void run(int most = 100000) {
    std::map<RequestId, int> leaving;
    while ((engine.unfinished() > 0 || !leaving.empty()) && most-- > 0) {
      const auto events = engine.poll();
      ASSERT_TRUE(events.ok());
      most_used = std::max(most_used, engine.cache().bytes);
      for (auto& [id, left] : leaving)
        if (--left <= 0) sessions.erase(id);
      std::erase_if(leaving, [](const auto& each) { return each.second <= 0; });
      for (const Event& event : *events) {
        ASSERT_NE(event.kind, Event::Kind::kFailed) << event.status.message();
        if (event.kind != Event::Kind::kFinished) continue;
        results[event.request] = event.result;
        if (sessions.count(event.request) > 0) leaving[event.request] = polls;
      }
    }
    ASSERT_GE(most, 0) << "no end";
  }
};

class StoredSessions : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Policies, StoredSessions,
                         ::testing::Values("full", "streaming:sinks=4,window=60", "h2o:budget=64"));

TEST_P(StoredSessions, TakeNoMemoryBeforeTheyAreUsed) {
  const SessionFile file(GetParam());
  const auto engine = open_engine(64 * kMiB);
  const std::uint64_t before = engine->cache().bytes;
  const auto opened = engine->open_session(file.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Session& session = *opened->session;
  EXPECT_EQ(engine->cache().bytes, before);
  const auto loaded = engine->load_session(file.path());
  EXPECT_EQ(session.kv().seen, loaded->session->kv().seen);
  EXPECT_EQ(session.kv().bytes, loaded->session->kv().bytes);
  EXPECT_EQ(engine->cache().bytes, session.kv().bytes) << "of the one that is loaded";
  EXPECT_EQ(session.forgotten().dropped, loaded->session->forgotten().dropped);
  // Saved from its file, forked, and used.
  const std::string copy = file.path() + ".copy";
  ASSERT_TRUE(session.save(copy).ok());
  EXPECT_EQ(std::filesystem::file_size(copy), std::filesystem::file_size(file.path()));
  EXPECT_TRUE(engine->load_session(copy).ok());
  std::filesystem::remove(copy);
  const auto fork = session.fork();
  ASSERT_TRUE(fork.ok()) << fork.status().message();
  for (Session* each : {fork->get(), &session}) {
    ASSERT_TRUE(each->read(" And then").ok());
    EXPECT_EQ(each->generate(greedy(24), {})->text, file.text());
  }
}

TEST_P(StoredSessions, GiveUpTheirPagesAndComeBackFromTheFile) {
  const SessionFile file(GetParam());
  const auto engine = open_engine(file.bytes() * 5 / 2 + kMiB / 4, {.stop_mark = 1, .preempt_mark = 1});
  Runner runner{*engine};
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    RequestOptions options = file.open(*engine);
    options.priority = -i;  // the last one goes first
    ids.push_back(runner.submit(std::move(options)));
    ASSERT_TRUE(engine->poll().ok());
  }
  runner.run();
  std::int64_t preemptions = 0;
  for (const RequestId id : ids) {
    EXPECT_EQ(runner.results[id].text, file.text());
    preemptions += runner.results[id].preemptions;
  }
  EXPECT_GT(preemptions, 0) << "none gave up its pages: this shows nothing";
}

// One tenant's sessions, each of which its ceiling allows, take neither more than the ceiling together nor the floor of
// another.
TEST(SessionAdmission, SessionsStayWithinTheirTenantsCeiling) {
  const SessionFile file("full");
  const std::uint64_t one = file.bytes();
  const std::uint64_t memory = 8 * one;
  const auto engine = open_engine(memory);
  ASSERT_TRUE(engine->set_quota(1, {.floor = 4 * one}).ok());
  ASSERT_TRUE(engine->set_quota(2, {.ceiling = 3 * one}).ok());
  Runner runner{*engine};
  std::vector<RequestId> theirs;
  for (int i = 0; i < 12; ++i) {
    RequestOptions options = file.open(*engine);
    options.tenant = 2;
    theirs.push_back(runner.submit(std::move(options)));
  }
  EXPECT_EQ(engine->cache().bytes, 0u);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(engine->poll().ok());
  RequestOptions own;
  own.prompt = tale(40);
  own.policy = "full";
  own.generate = greedy(20);
  own.tenant = 1;
  const RequestId mine = runner.submit(own);
  runner.run();
  EXPECT_EQ(runner.results[mine].finish_reason, FinishReason::kLength);
  EXPECT_EQ(runner.results[mine].tokens, 20);
  for (const RequestId id : theirs) EXPECT_EQ(runner.results[id].text, file.text());

  Runner again{*engine};
  for (int i = 0; i < 12; ++i) {
    RequestOptions options = file.open(*engine);
    options.tenant = 2;
    again.submit(std::move(options));
  }
  again.run();
  EXPECT_LE(again.most_used, 3 * one) << "those that are being saved count, too";
  EXPECT_GT(again.most_used, one) << "one after the other: this shows nothing";
}

TEST(SessionAdmission, ASessionBeyondTheCeilingIsRefused) {
  const SessionFile file("full");
  const auto engine = open_engine(64 * kMiB);
  ASSERT_TRUE(engine->set_quota(2, {.ceiling = file.bytes() - 1}).ok());
  RequestOptions options = file.open(*engine);
  options.tenant = 2;
  const Result<RequestId> id = engine->submit(options);
  EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(id.status().message().find(std::to_string(file.bytes())), std::string::npos) << id.status().message();
}

// A session larger than all memory is refused when it is opened.
TEST(SessionAdmission, ASessionBeyondTheMemoryIsRefused) {
  const SessionFile file("full");
  const auto engine = open_engine(file.bytes() / 2);
  EXPECT_EQ(engine->open_session(file.path()).status().code(), StatusCode::kResourceExhausted);
}

// What a session holds that is being saved comes back, so a request waits for it, without a pass.
TEST(SessionAdmission, RequestsWaitForASessionThatLeaves) {
  const SessionFile file("full", 60);
  const auto engine = open_engine(file.bytes() * 3 / 2);
  Runner runner{*engine};
  RequestOptions first = file.open(*engine);
  std::shared_ptr<Session> session = first.session;
  runner.submit(std::move(first));
  while (engine->unfinished() > 0) ASSERT_TRUE(engine->poll().ok());
  runner.sessions.clear();
  RequestOptions next;
  next.prompt = tale(60);
  next.policy = "full";
  next.generate = greedy(20);
  const RequestId waits = runner.submit(next);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(engine->poll().ok());
  const std::int64_t passes = engine->report().passes;
  for (int i = 0; i < 10; ++i) {
    const auto events = engine->poll();
    ASSERT_TRUE(events.ok());
    EXPECT_TRUE(events->empty());
  }
  EXPECT_EQ(engine->report().passes, passes);
  EXPECT_EQ(engine->unfinished(), 1);
  session.reset();
  runner.run();
  EXPECT_EQ(runner.results[waits].finish_reason, FinishReason::kLength);
  EXPECT_EQ(runner.results[waits].tokens, 20);
}

// A loaded session keeps its pages: a reservation counts neither these as coming back, nor the request's copy of them,
// which its policy rewrites, as nothing.
TEST(SessionAdmission, ReservationsHoldBesideALoadedSession) {
  const SessionFile file("h2o:budget=400", 60);
  SchedulerOptions scheduler;
  scheduler.admission = Admission::kReserve;
  RequestOptions next;
  next.prompt = tale(52);
  next.policy = "full";
  next.generate = greedy(60);
  const auto planner = open_engine(64 * kMiB);
  const std::uint64_t held = planner->open_session(file.path())->session->kv().bytes;
  PlanRequest plan;
  plan.policy = next.policy;
  plan.prompt = std::ssize(planner->text().encode_prompt(next)->tokens);
  plan.max_tokens = next.generate.max_tokens;
  const std::uint64_t others = planner->plan(plan)->bytes;
  ASSERT_GT(others, held / 2);
  // Room for the session and its copy, and for the session and the other request, but not for all three.
  const auto engine = open_engine(held * 8 / 5 + others, scheduler);
  auto loaded = engine->load_session(file.path());
  ASSERT_TRUE(loaded.ok());
  RequestOptions first = SessionFile::next_turn();
  first.session = std::move(loaded->session);
  first.generate = greedy(40);
  Runner runner{*engine};
  const RequestId one = runner.submit(first);
  const RequestId two = runner.submit(next);
  runner.run();
  EXPECT_EQ(runner.results[one].finish_reason, FinishReason::kLength);
  EXPECT_EQ(runner.results[two].finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine->report().preemptions, 0);
}

// Whether a request holds pages when it is cancelled is chance; the session is the same.
TEST(SessionAdmission, ACancelledTurnNeverEntersTheSession) {
  const SessionFile file("full");
  const auto engine = open_engine(64 * kMiB);
  RequestOptions options = file.open(*engine);
  const std::int64_t before = options.session->kv().seen;
  const Result<RequestId> id = engine->submit(options);
  ASSERT_TRUE(id.ok());
  bool text = false;
  while (!text) {
    const auto events = engine->poll();
    ASSERT_TRUE(events.ok());
    for (const Event& event : *events) text = text || event.kind == Event::Kind::kText;
  }
  ASSERT_TRUE(engine->cancel(*id).ok());
  while (engine->unfinished() > 0) ASSERT_TRUE(engine->poll().ok());
  EXPECT_EQ(options.session->kv().seen, before);
  ASSERT_TRUE(options.session->read(" And then").ok());
  EXPECT_EQ(options.session->generate(greedy(24), {})->text, file.text());
}

// A large session is loaded over many passes, in which others go on; it may be cancelled meanwhile.
TEST(SessionAdmission, OthersGoOnWhileASessionIsLoaded) {
  const SessionFile file("full");
  const auto model = load(small_model(), {.threads = 1});
  const auto runner = std::make_shared<BatchRunner>(model, *new_cache(model, 64 * kMiB));
  const auto image = *open_image(file.path(), *model);
  const auto columns = static_cast<int>(image->parts.pages.size());
  ASSERT_GT(columns, 4);
  RequestQueue queue(runner);
  queue.set_load_bytes(1);  // a column
  const auto submit = [&](RequestOptions options) {
    std::shared_ptr<KvCache> counting = std::move(*KvCache::create(model->kv_shape, 64 * kMiB));
    options.session = *make_session(runner, *restore_session(image->parts, model, counting), image);
    auto text = dynamic_cast<SessionBase*>(options.session.get())->begin(options);
    EXPECT_TRUE(text.ok());
    return queue.add(options, std::move(*text), *make_policy("full"), image->parts.head.chunk);
  };
  RequestOptions other;
  other.prompt = "Once";
  other.policy = "full";
  other.generate = greedy(100);
  queue.add(other, *encode_request(*model, other), *make_policy("full"));
  ASSERT_TRUE(queue.poll().ok());
  const std::uint64_t used = runner->cache()->budget().used();
  const RequestId leaves = submit(SessionFile::next_turn());
  ASSERT_TRUE(queue.poll().ok());
  EXPECT_GT(runner->cache()->budget().used(), used + file.bytes() / 2);
  ASSERT_TRUE(queue.cancel(leaves).ok());
  ASSERT_TRUE(queue.poll().ok());
  EXPECT_LT(runner->cache()->budget().used(), used + file.bytes() / 2);

  const RequestId stays = submit(SessionFile::next_turn());
  int before = 0;  // passes of the other before the session's first
  bool begun = false;
  std::string text;
  while (queue.unfinished() > 0) {
    const std::int64_t passes = queue.counters().passes;
    const auto events = queue.poll();
    ASSERT_TRUE(events.ok());
    EXPECT_LE(queue.counters().passes, passes + 1);
    for (const Event& event : *events) {
      begun = begun || event.request == stays;
      if (event.request == stays && event.kind == Event::Kind::kText) text += event.text;
      ASSERT_NE(event.kind, Event::Kind::kFailed);
    }
    if (!begun) before += queue.counters().passes > passes ? 1 : 0;
  }
  EXPECT_EQ(text, file.text());
  EXPECT_EQ(before, columns - 1) << "one column each";
  EXPECT_EQ(runner->cache()->budget().used(), 0u);
  runner->cache()->check_invariants({});
}

// Prefixes that requests left hold all memory; a session that starts comes first.
TEST(SessionAdmission, ASessionTakesTheRoomOfCachedPrefixes) {
  const SessionFile file("full", 60);
  const auto engine = open_engine(2 * file.bytes(), {}, 64 * kMiB);
  for (int i = 0; i < 200 && engine->cache().budget - engine->cache().bytes >= file.bytes(); ++i) {
    RequestOptions options;
    options.policy = "full";
    options.prompt = std::to_string(i) + tale(12);
    options.generate = greedy(1);
    ASSERT_TRUE(engine->submit(options).ok());
    while (engine->unfinished() > 0) ASSERT_TRUE(engine->poll().ok());
  }
  ASSERT_LT(engine->cache().budget - engine->cache().bytes, file.bytes()) << "there is room anyway: this shows nothing";
  Runner runner{*engine};
  const RequestId id = runner.submit(file.open(*engine));
  runner.run();
  EXPECT_EQ(runner.results[id].text, file.text());
}

}  // namespace
}  // namespace kvasir::test
