#include "client/demo/story.h"

#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "client/demo/model.h"
#include "client/demo/report.h"
#include "client/demo/screen.h"
#include "client/demo/stage.h"

namespace gpumem::demo {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kSimulatedDevices = 2;
constexpr const char* kSimulatedMemory = "80GiB";
constexpr const char* kSegmentName = "demo/model";
// The default model, its segment, and the workers' own memory, with room to spare.
constexpr std::uint64_t kRoomBytes = std::uint64_t{1} << 30;

// Bounds on what may take how long. Far above what it takes: only a hang reaches them.
constexpr milliseconds kStartWithin(60'000);
constexpr milliseconds kWorkWithin(120'000);
constexpr milliseconds kSettleWithin(15'000);
constexpr milliseconds kAnswerWithin(15'000);
constexpr milliseconds kPollEvery(50);

// How long the faulted worker hangs before it is killed: long enough to see that nothing settles meanwhile.
constexpr milliseconds kHang(500);
// What the peer must do meanwhile to count as working.
constexpr std::uint64_t kPeerSteps = 10;

double Ms(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// What the demo knows of one worker.
struct Actor {
  Child* child = nullptr;
  Json verified, serving, faulted, finished;
  std::string failed;
  StepWatch steps;
  double longest_pause_ms = 0;
  Clock::time_point serving_at;
};

class Story {
 public:
  explicit Story(const StoryOptions& options) : options_(options), simulated_(options.driver == "sim") {}

  int Tell() {
    const Clock::time_point start = Clock::now();
    screen_.Title("gpumem demo: a worker faults, is killed and replaced, and nothing is lost");
    const bool finished = Prepare() && StartDaemon() && Publish() && StartWorkers() && FaultA() && ReplaceA() &&
                          CompareBooks() && Leave();
    if (!finished && !stage_.interrupted()) ShowWhy();
    return Summarize(finished, Ms(Clock::now() - start));
  }

 private:
  // --- telling -----------------------------------------------------------------------------------------------------
  bool Check(bool held, const std::string& what) {
    // What an interrupt cut short is no finding.
    if (stage_.interrupted()) return false;
    screen_.Check(held, what);
    return report_.Check(held, what);
  }
  bool Stop(const std::string& what) { return Check(false, what); }

  void ShowWhy() {
    for (const auto& [name, actor] : actors_) {
      if (!actor.failed.empty()) screen_.Say(name + " says: " + actor.failed);
    }
    for (const Child* child : started_) {
      if (child->ended) screen_.Say(child->name + " ended: " + child->how);
      const std::string tail = Stage::LogTail(*child);
      if (!tail.empty()) screen_.Command("tail " + child->log, tail);
    }
  }

  int Summarize(bool finished, double ms) {
    report_.Set("seconds", ms / 1000);
    report_.Set("interrupted", stage_.interrupted());
    const bool good = finished && report_.passed();
    if (!finished && !stage_.interrupted() && report_.passed()) report_.Check(false, "the demo came to its end");
    if (stage_.interrupted()) {
      report_.Check(false, "the demo was not interrupted");
      screen_.Summary(false, "Interrupted. Everything that was started is ended and removed.");
    } else {
      screen_.Summary(good, std::to_string(report_.held()) + " of " + Count(report_.checks(), "check", "checks") +
                                " held, in " + Milliseconds(ms) + ".");
    }
    std::string error;
    if (!options_.report.empty()) error = report_.Write(options_.report);
    if (!error.empty()) std::fprintf(stderr, "gpumem-demo: %s\n", error.c_str());
    if (stage_.interrupted()) return 130;
    return good && error.empty() ? 0 : 1;
  }

  // --- processes ---------------------------------------------------------------------------------------------------
  std::string Program(const char* name) const { return options_.programs + "/" + name; }

  Child* Start(const std::string& name, const std::string& path, const std::vector<std::string>& arguments,
               Stage::Reads reads) {
    Child* child = stage_.Start(name, path, arguments, reads);
    if (child == nullptr) {
      Stop(stage_.error());
      return nullptr;
    }
    started_.push_back(child);
    return child;
  }

  // memctl, as an operator runs it.
  Stage::Ran Memctl(std::vector<std::string> arguments) {
    return stage_.Run(Program("memctl"), std::move(arguments), kAnswerWithin);
  }
  void ShowMemctl(const std::string& what) {
    const Stage::Ran ran = Memctl({what});
    if (stage_.interrupted()) return;
    screen_.Command("memctl " + what, ran.good ? ran.output : ran.errors);
  }
  // The reply of a memctl command as JSON; null when it failed.
  Json Ask(const std::string& what) {
    const Stage::Ran ran = Memctl({what, "--json"});
    return ran.good ? ParseObject(ran.output) : Json();
  }
  static std::vector<Json> Rows(const Json& reply, const char* key) {
    const auto at = reply.find(key);
    return at != reply.end() && at->is_array() ? at->get<std::vector<Json>>() : std::vector<Json>();
  }
  // Asks again and again until `good` likes the answer.
  Json AskUntil(const std::string& what, milliseconds within, const std::function<bool(const Json&)>& good) {
    const Clock::time_point deadline = Clock::now() + within;
    for (;;) {
      Json reply = Ask(what);
      if (stage_.interrupted() || (!reply.is_null() && good(reply)) || Clock::now() >= deadline) return reply;
      stage_.Wait(kPollEvery, [] { return false; });
    }
  }

  Actor* StartWorker(const char* role, const std::string& name, const std::string& kv_device) {
    std::vector<std::string> arguments = {role, "--name", name, "--socket-dir", SocketDir()};
    arguments.insert(arguments.end(), {"--model", model_, "--segment", kSegmentName});
    arguments.insert(arguments.end(), {"--device", devices_[0], "--kv-device", kv_device});
    if (simulated_) arguments.insert(arguments.end(), {"--libcuda", options_.sim_library});
    Child* child = Start(name, options_.self, arguments, Stage::Reads::kMessages);
    if (child == nullptr) return nullptr;
    Actor* actor = &actors_[name];
    actor->child = child;
    child->on_message = [actor](const Json& message) { Hear(actor, message); };
    return actor;
  }

  static void Hear(Actor* actor, const Json& message) {
    const std::string event = TextOf(message, "event");
    if (event == "verified" || event == "published") actor->verified = message;
    if (event == "faulted") actor->faulted = message;
    if (event == "finished") actor->finished = message;
    if (event == "failed") actor->failed = TextOf(message, "what");
    if (event == "serving") {
      actor->serving = message;
      actor->serving_at = Clock::now();
    }
    if (event == "steps") {
      actor->steps.Add(NumberOf(message, "first"), NumberOf(message, "last"), NumberOf(message, "failed"));
      actor->longest_pause_ms = RealOf(message, "longest_pause_ms");
    }
  }

  // Waits until `done`, or the worker cannot get there any more.
  bool WaitFor(const Actor& actor, milliseconds within, const std::function<bool()>& done) {
    stage_.Wait(within, [&] { return done() || actor.child->ended || !actor.failed.empty(); });
    return !stage_.interrupted() && done();
  }

  std::string SocketDir() const { return stage_.directory() + "/run"; }
  std::string AdminDir() const { return stage_.directory() + "/admin"; }

  // --- 0: a place to play -----------------------------------------------------------------------------------------
  // The first of the usual places for short-lived memory that has room.
  std::string ParentDirectory() const {
    if (!options_.directory.empty()) return options_.directory;
    std::vector<std::string> places = {"/dev/shm"};
    if (const char* tmp = std::getenv("TMPDIR"); tmp != nullptr && *tmp == '/') places.emplace_back(tmp);
    places.emplace_back("/tmp");
    places.emplace_back("/var/tmp");
    for (const std::string& place : places) {
      struct statvfs info;
      if (::access(place.c_str(), W_OK) == 0 && ::statvfs(place.c_str(), &info) == 0 &&
          info.f_bavail * info.f_frsize >= kRoomBytes) {
        return place;
      }
    }
    return "";
  }

  bool Prepare() {
    report_.Set("driver", options_.driver);
    const std::string parent = ParentDirectory();
    if (parent.empty()) {
      return Stop("/dev/shm, $TMPDIR, /tmp or /var/tmp has " + Bytes(kRoomBytes) +
                  " free (or name a place with --dir)");
    }
    const std::string error = stage_.Open(parent, options_.self);
    if (!error.empty()) return Stop(error);
    screen_.Say((simulated_ ? "Simulated GPUs: " + std::to_string(kSimulatedDevices) + " × 80 GiB"
                            : std::string("The real driver and its GPUs")) +
                ". Everything is in " + stage_.directory() + ".");
    stage_.SetEnvironment("GPUMEM_ADMIN_SOCKET", AdminDir() + "/admin.sock");
    if (simulated_) {
      stage_.SetEnvironment("SIMCUDA_DIR", SimDir());
      const Stage::Ran ran = stage_.Run(
          Program("simgpu"),
          {"init", "--dir", SimDir(), "--gpus", std::to_string(kSimulatedDevices), "--memory", kSimulatedMemory},
          kAnswerWithin);
      if (!ran.good) return Stop("simgpu makes the simulated GPUs: " + ran.errors);
    }
    model_ = options_.model;
    if (model_.empty()) {
      model_ = stage_.directory() + "/model.safetensors";
      const std::string why = WriteDefaultModel(model_);
      if (!why.empty()) return Stop(why);
    }
    report_.Set("model", options_.model.empty() ? "default" : options_.model);
    return !stage_.interrupted();
  }
  std::string SimDir() const { return stage_.directory() + "/gpus"; }

  // --- 1: the daemon ------------------------------------------------------------------------------------------------
  bool StartDaemon() {
    screen_.Chapter("The daemon");
    const Clock::time_point start = Clock::now();
    std::vector<std::string> arguments = {"--driver=" + options_.driver, "--socket-dir=" + SocketDir(),
                                          "--admin-dir=" + AdminDir(), "--keeper=spawn", "--log-format=human"};
    if (simulated_) {
      arguments.push_back("--sim-dir=" + SimDir());
      arguments.push_back("--sim-library-dir=" + options_.sim_library.substr(0, options_.sim_library.rfind('/')));
    }
    daemon_ = Start("gpumemd", Program("gpumemd"), arguments, Stage::Reads::kNeither);
    if (daemon_ == nullptr) return false;

    // Ready is what answers: every device healthy, and the keeper there.
    const auto ready = [this](const Json& status) {
      if (daemon_->ended) return true;
      const std::vector<Json> devices = Rows(status, "devices");
      for (const Json& device : devices) {
        if (TextOf(device, "state") != "healthy") return false;
      }
      return !devices.empty() && status.value("keeper_connected", false);
    };
    Json status;
    const Clock::time_point deadline = Clock::now() + kStartWithin;
    do {
      status = AskUntil("status", kPollEvery, ready);
    } while (!stage_.interrupted() && !daemon_->ended && (status.is_null() || !ready(status)) &&
             Clock::now() < deadline);
    for (const Json& device : Rows(status, "devices")) devices_.push_back(TextOf(device, "uuid"));
    const bool good = !daemon_->ended && !status.is_null() && ready(status);
    report_.Set("devices", devices_.size());
    const std::string answer = TextOf(status, "driver") + ", " + Count(devices_.size(), "device", "devices");
    if (!Check(good, good ? "gpumemd answers: driver " + answer + " healthy, the keeper connected (" +
                                Milliseconds(Ms(Clock::now() - start)) + ")"
                          : "gpumemd answers, with every device healthy and the keeper connected")) {
      return false;
    }
    events_ = Start("events", Program("memctl"), {"events", "--json"}, Stage::Reads::kOutput);
    if (events_ == nullptr) return false;
    events_->on_line = [this](std::string_view line) { HearEvent(ParseObject(line)); };
    return true;
  }

  void HearEvent(const Json& event) {
    if (event.is_null()) return;
    const auto ended = event.find("session_ended");
    if (ended != event.end()) settled_at_[NumberOf(*ended, "session_id")] = Clock::now();
  }

  // --- 2: a model becomes a segment
  // -----------------------------------------------------------------------------------
  bool Publish() {
    screen_.Chapter("A model becomes memory that no process owns");
    const Clock::time_point start = Clock::now();
    Actor* loader = StartWorker("loader", "loader", devices_[0]);
    if (loader == nullptr) return false;
    WaitFor(*loader, kWorkWithin, [&] { return loader->child->ended; });
    tensors_ = NumberOf(loader->verified, "tensors");
    segment_bytes_ = NumberOf(loader->verified, "bytes");
    report_.Set("tensors", tensors_);
    report_.Set("model_bytes", NumberOf(loader->verified, "model_bytes"));
    report_.Set("segment_bytes", segment_bytes_);
    if (!Check(loader->child->exited_well() && segment_bytes_ > 0,
               "a loader process published " + TextOf(loader->verified, "segment") + ": " +
                   Count(tensors_, "tensor", "tensors") + ", " + Bytes(segment_bytes_) + " (" +
                   Milliseconds(Ms(Clock::now() - start)) + ")")) {
      return false;
    }
    segment_ = TextOf(loader->verified, "segment");
    const Json segments =
        AskUntil("segments", kSettleWithin, [this](const Json& reply) { return SegmentIsSealed(reply); });
    ShowMemctl("segments");
    return Check(SegmentIsSealed(segments), "the loader has ended, and its segment is there, sealed");
  }

  bool SegmentIsSealed(const Json& reply) const {
    for (const Json& row : Rows(reply, "segments")) {
      if (TextOf(row, "name") != segment_) continue;
      return TextOf(row, "state") == "sealed" && NumberOf(row, "bytes") == segment_bytes_;
    }
    return false;
  }

  // --- 3: two workers -----------------------------------------------------------------------------------------------
  bool StartWorkers() {
    screen_.Chapter("Two workers attach it, verify it, and serve");
    Actor* a = StartWorker("worker", "A", devices_[0]);
    Actor* b = a == nullptr ? nullptr : StartWorker("worker", "B", devices_.back());
    if (b == nullptr) return false;
    return CheckServing("A", *a) && CheckServing("B", *b);
  }

  bool CheckServing(const std::string& name, const Actor& actor) {
    WaitFor(actor, kWorkWithin, [&] { return !actor.serving.is_null(); });
    const std::uint64_t verified = NumberOf(actor.verified, "verified");
    verified_[name] = verified;
    verified_total_ += verified;
    report_.Set("tensors_verified", verified_total_);
    report_.Set("tensors_verified_by", verified_);
    const std::string wrong = TextOf(actor.verified, "wrong");
    return Check(!actor.serving.is_null() && verified == tensors_ && tensors_ > 0,
                 name + " (pid " + std::to_string(actor.child->pid()) + ") attached it read-only and verified " +
                     std::to_string(verified) + " of " + Count(tensors_, "tensor", "tensors") + " in " +
                     Milliseconds(RealOf(actor.verified, "verify_ms")) + "; works on a kv-cache of " +
                     Bytes(NumberOf(actor.serving, "kv_bytes")) + (wrong.empty() ? "" : "; " + wrong));
  }

  // --- 4: the fault -----------------------------------------------------------------------------------------------
  bool FaultA() {
    screen_.Chapter("A faults");
    Actor& a = actors_["A"];
    Actor& b = actors_["B"];
    const std::uint64_t b_before = b.steps.done();
    if (!WaitFor(b, kAnswerWithin, [&] { return b.steps.done() >= kPeerSteps; }) ||
        !WaitFor(a, kAnswerWithin, [&] { return a.steps.done() >= kPeerSteps; })) {
      return Stop("A and B work on their kv-caches");
    }
    screen_.Say("Before:");
    ShowMemctl("sessions");
    Send(a.child->messages.get(), {{"command", "fault"}});
    WaitFor(a, kAnswerWithin, [&] { return !a.faulted.is_null(); });
    report_.Set("fault", TextOf(a.faulted, "error"));
    if (!Check(a.faulted.value("sticky", false) && a.faulted.value("process_fatal", false) &&
                   NumberOf(a.faulted, "cuda_error") == kIllegalAddress,
               "a kernel of A stored through the read-only mapping: " + TextOf(a.faulted, "error") + ", sticky")) {
      return false;
    }
    const std::string refused = TextOf(a.faulted, "reported");
    if (!Check(refused.empty(), "A reported it, and hangs" + (refused.empty() ? "" : ": " + refused))) return false;
    stage_.Wait(kHang, [] { return false; });
    return CheckFenced(a) && CheckPeer(b, b_before, "B goes on working");
  }

  bool CheckFenced(const Actor& a) {
    const std::uint64_t charged = NumberOf(a.serving, "charged_bytes");
    Json quarantine =
        AskUntil("quarantine", kSettleWithin, [&](const Json& reply) { return QuarantinedBytes(reply, a) == charged; });
    screen_.Say("After:");
    ShowMemctl("sessions");
    ShowMemctl("quarantine");
    const Json sessions = Ask("sessions");
    for (const Json& row : Rows(sessions, "sessions")) {
      if (NumberOf(row, "pid") != static_cast<std::uint64_t>(a.child->pid())) continue;
      a_session_ = NumberOf(row, "session_id");
      a_fenced_ = TextOf(row, "state") == "fenced";
    }
    quarantine = Ask("quarantine");
    const std::uint64_t quarantined = QuarantinedBytes(quarantine, a);
    report_.Set("quarantined_bytes", quarantined);
    if (!Check(a_fenced_, "A is fenced: nothing more is granted to it")) return false;
    if (!Check(quarantined == charged && quarantined > 0,
               "all that A could write to is quarantined: " + Bytes(quarantined) + " of " + Bytes(charged))) {
      return false;
    }
    return CheckEvidence(quarantine, a) &&
           Check(SegmentIsSealed(Ask("segments")), "the segment is sealed and whole, as before");
  }

  bool CheckEvidence(const Json& quarantine, const Actor& a) {
    bool reasons = true, has_fault = true, waits = true;
    Json evidence = Json::array(), waiting = Json::array();
    for (const Json& row : RecordsOf(quarantine, a)) {
      reasons = reasons && TextOf(row, "reason") == "writer-faulted";
      evidence = row.value("evidence", Json::array());
      waiting = row.value("waiting_for", Json::array());
      has_fault = has_fault && Has(evidence, "fault-reported");
      waits = waits && Has(waiting, "pidfd-readable") && Has(waiting, "witness-closed");
    }
    report_.Set("quarantine_reason", reasons ? "writer-faulted" : "other");
    report_.Set("evidence_before_kill", evidence);
    report_.Set("waiting_for_before_kill", waiting);
    return Check(reasons && has_fault, "its reason is writer-faulted; the evidence so far: fault-reported") &&
           Check(waits && settled_at_.count(a_session_) == 0,
                 "nothing settles while the process lives: it waits for pidfd-readable and witness-closed");
  }

  static bool Has(const Json& list, const char* word) {
    for (const Json& item : list) {
      if (item == word) return true;
    }
    return false;
  }
  static std::vector<Json> RecordsOf(const Json& quarantine, const Actor& actor) {
    std::vector<Json> records;
    for (const Json& row : Rows(quarantine, "records")) {
      if (NumberOf(row, "pid") == static_cast<std::uint64_t>(actor.child->pid())) records.push_back(row);
    }
    return records;
  }
  static std::uint64_t QuarantinedBytes(const Json& quarantine, const Actor& actor) {
    std::uint64_t bytes = 0;
    for (const Json& row : RecordsOf(quarantine, actor)) bytes += NumberOf(row, "bytes");
    return bytes;
  }

  // B did at least so many steps since it had done `before`, and has missed none.
  bool CheckPeer(const Actor& b, std::uint64_t before, const std::string& what) {
    WaitFor(b, kAnswerWithin, [&] { return b.steps.done() >= before + kPeerSteps; });
    report_.Set("peer_steps", b.steps.done());
    report_.Set("peer_missed_steps", b.steps.missed());
    report_.Set("peer_longest_pause_ms", b.longest_pause_ms);
    return Check(!b.child->ended && b.steps.done() >= before + kPeerSteps && b.steps.missed() == 0,
                 what + " (" + Count(b.steps.done(), "step", "steps") + " done, " + std::to_string(b.steps.missed()) +
                     " missed, longest pause " + Milliseconds(b.longest_pause_ms) + ")");
  }

  // --- 5: the replacement -------------------------------------------------------------------------------------------
  bool ReplaceA() {
    screen_.Chapter("A is killed and replaced");
    Actor& a = actors_["A"];
    Actor& b = actors_["B"];
    const std::uint64_t b_before = b.steps.done();
    const Clock::time_point killed = Clock::now();
    SendSignal(a.child->process.pidfd.get(), SIGKILL);
    Actor* next = StartWorker("worker", "A2", devices_[0]);
    if (next == nullptr) return false;
    screen_.Say("SIGKILL to A (pid " + std::to_string(a.child->pid()) + "), and its replacement A2 starts.");
    if (!CheckServing("A2", *next)) return false;
    const double recovery_ms = Ms(next->serving_at - killed);
    report_.Set("recovery_ms", recovery_ms);
    report_.Set("attach_ms", RealOf(next->verified, "attach_ms"));
    report_.Set("verify_ms", RealOf(next->verified, "verify_ms"));
    Check(true, "the replacement is serving " + Milliseconds(recovery_ms) + " after the kill; attaching took " +
                    Milliseconds(RealOf(next->verified, "attach_ms")) + " of it, verifying " +
                    Milliseconds(RealOf(next->verified, "verify_ms")));

    stage_.Wait(kSettleWithin, [&] { return a.child->ended && settled_at_.count(a_session_) != 0; });
    const bool settled = settled_at_.count(a_session_) != 0;
    const double settle_ms = settled ? Ms(settled_at_[a_session_] - killed) : 0;
    if (settled) report_.Set("settle_ms", settle_ms);
    const Json quarantine =
        AskUntil("quarantine", kSettleWithin, [&](const Json& reply) { return QuarantinedBytes(reply, a) == 0; });
    if (!Check(settled && !quarantine.is_null() && QuarantinedBytes(quarantine, a) == 0,
               "A's charges settled " + Milliseconds(settle_ms) + " after the kill, not before: its end is proven")) {
      return false;
    }
    ShowMemctl("sessions");
    return CheckPeer(b, b_before, "B missed no step meanwhile");
  }

  // --- 6: the books and the hardware --------------------------------------------------------------------------------
  // Bytes for each device; nullopt when they cannot be had.
  using PerDevice = std::map<std::string, std::uint64_t>;
  static std::optional<PerDevice> PhysicalBytes(const Json& reply) {
    if (reply.is_null()) return std::nullopt;
    PerDevice bytes;
    for (const Json& device : Rows(reply, "devices"))
      bytes[TextOf(device, "uuid")] = NumberOf(device, "physical_bytes");
    return bytes;
  }
  std::optional<PerDevice> HardwareBytes() {
    const Stage::Ran ran = stage_.Run(Program("simgpu"), {"ls", "--json"}, kAnswerWithin);
    return ran.good ? PhysicalBytes(ParseObject(ran.output)) : std::nullopt;
  }

  // Compares until equal: what was just let go may still be on its way through the arena.
  bool Compare(PerDevice* books, PerDevice* hardware) {
    const Clock::time_point deadline = Clock::now() + kSettleWithin;
    for (;;) {
      const std::optional<PerDevice> ours = PhysicalBytes(Ask("devices"));
      const std::optional<PerDevice> theirs = HardwareBytes();
      if (ours && theirs) {
        *books = *ours;
        *hardware = *theirs;
        if (!books->empty() && *books == *hardware) return true;
      }
      if (stage_.interrupted() || Clock::now() >= deadline) return false;
      stage_.Wait(kPollEvery, [] { return false; });
    }
  }

  bool CompareBooks() {
    screen_.Chapter("The books and the hardware");
    ShowMemctl("devices");
    if (!simulated_) {
      screen_.Say(
          "A real device tells no one which physical memory it holds, so there is nothing to compare the books");
      screen_.Say("with: this check needs the simulated driver.");
      report_.Set("books_match_hardware", nullptr);
      return true;
    }
    PerDevice books, hardware;
    const bool equal = Compare(&books, &hardware);
    Report::Json rows = Report::Json::array();
    bool good = true;
    for (const std::string& device : devices_) {
      Report::Json row;
      row["device_uuid"] = device;
      row["books_bytes"] = books[device];
      row["hardware_bytes"] = hardware[device];
      rows.push_back(row);
      good = Check(books[device] == hardware[device], device + ": the books say " + Bytes(books[device]) +
                                                          ", the simulated hardware " + Bytes(hardware[device])) &&
             good;
    }
    report_.Set("books_match_hardware", equal && good);
    report_.Set("hardware", rows);
    return equal && good;
  }

  // --- and out
  // --------------------------------------------------------------------------------------------------------
  bool Leave() {
    screen_.Chapter("Everybody leaves");
    for (const char* name : {"A2", "B"}) {
      Actor& actor = actors_[name];
      Send(actor.child->messages.get(), {{"command", "finish"}});
      WaitFor(actor, kAnswerWithin, [&] { return actor.child->ended; });
      if (!Check(actor.child->exited_well() && !actor.finished.is_null() && actor.steps.missed() == 0,
                 std::string(name) + " gave everything back and ended, after " +
                     Count(actor.steps.done(), "step", "steps"))) {
        return false;
      }
    }
    const Stage::Ran removed = Memctl({"segments", "rm", segment_});
    if (stage_.interrupted()) return false;
    screen_.Command("memctl segments rm " + segment_, removed.good ? removed.output : removed.errors);
    if (!Check(removed.good, "the segment is removed")) return false;
    if (simulated_) {
      PerDevice books, hardware;
      bool nothing = Compare(&books, &hardware);
      for (const auto& [device, bytes] : hardware) nothing = nothing && bytes == 0;
      if (!Check(nothing, "nothing is left, in the books and in the hardware")) return false;
    }
    SendSignal(daemon_->process.pidfd.get(), SIGTERM);
    stage_.Wait(kSettleWithin, [this] { return daemon_->ended; });
    return Check(daemon_->exited_well(), "gpumemd stopped on SIGTERM");
  }

  static constexpr std::uint64_t kIllegalAddress = 700;  // CUDA_ERROR_ILLEGAL_ADDRESS

  const StoryOptions& options_;
  const bool simulated_;
  Screen screen_;
  Report report_;
  std::string model_;
  std::vector<std::string> devices_;
  std::string segment_;
  std::uint64_t tensors_ = 0, segment_bytes_ = 0, verified_total_ = 0;
  std::map<std::string, std::uint64_t> verified_;
  std::map<std::string, Actor> actors_;  // by name; addresses are stable
  std::map<std::uint64_t, Clock::time_point> settled_at_;
  std::uint64_t a_session_ = 0;
  bool a_fenced_ = false;
  std::vector<const Child*> started_;
  Child* daemon_ = nullptr;
  Child* events_ = nullptr;
  Stage stage_;  // last: its end ends every process, whose messages go to the members above
};

}  // namespace

int Tell(const StoryOptions& options) { return Story(options).Tell(); }

}  // namespace gpumem::demo
