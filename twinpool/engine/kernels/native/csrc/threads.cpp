// A job is one word: its number, how many claims it has and how many of them are taken. Who takes a claim learns
// all three at once, and as a job ends only when every claim that was taken is finished, what the job points to
// is there for as long as anybody works on it. Late threads find all claims taken, and are never waited for.
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "parking.h"

namespace {

constexpr int SLOTS = 8;                // jobs whose descriptions are kept, more than any claim can be late
constexpr int MOST_CLAIMS = 60000;      // 16 bits, and room for the claims of late threads
constexpr int64_t SPIN_NS = 600 * 1000; // longer than any pause within a step; then a thread parks

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

struct Job {
  Part part;
  void *what;
  int num_parts, grain;
};

}  // namespace

struct alignas(64) Team {
  uint64_t word;       // number of the newest job << 32 | its claims << 16 | claims taken
  char pad1[56];
  uint32_t finished;   // claims of the newest job that are done
  char pad2[60];
  uint32_t generation; // raised with each job, and to close; what parked threads wait on
  uint32_t parked;
  uint32_t closing;
  uint32_t active;     // threads that work; the others wait for it to change
  char pad3[48];
  Job jobs[SLOTS];
  int size;
  pthread_t *threads;
  int64_t waited_ns;
};

namespace {

struct Start {
  Team *team;
  int thread;
};

// Works on the newest job until its claims are taken.
void work(Team *team, int thread) {
  for (;;) {
    uint64_t word = __atomic_fetch_add(&team->word, 1, __ATOMIC_ACQ_REL);
    uint32_t claims = (word >> 16) & 0xffff, claim = word & 0xffff;
    if (claim >= claims) return;
    Job job = team->jobs[(word >> 32) % SLOTS];
    int first = claim * job.grain, end = first + job.grain;
    job.part(job.what, first, end < job.num_parts ? end : job.num_parts, thread);
    __atomic_fetch_add(&team->finished, 1, __ATOMIC_ACQ_REL);
  }
}

bool any_claim(const Team *team) {
  uint64_t word = __atomic_load_n(&team->word, __ATOMIC_ACQUIRE);
  return (word & 0xffff) < ((word >> 16) & 0xffff);
}

void *run_thread(void *argument) {
  Start start = *static_cast<Start *>(argument);
  free(argument);
  Team *team = start.team;
  uint32_t seen = 0;
  for (;;) {
    uint32_t active = __atomic_load_n(&team->active, __ATOMIC_ACQUIRE);
    if ((uint32_t)start.thread >= active) {
      if (__atomic_load_n(&team->closing, __ATOMIC_ACQUIRE)) return nullptr;
      sleep_while(&team->active, active);
      continue;
    }
    int64_t until = now_ns() + SPIN_NS;
    uint32_t generation;
    for (int spins = 0; (generation = __atomic_load_n(&team->generation, __ATOMIC_ACQUIRE)) == seen; ++spins) {
      rest();
      if (spins % 64) continue;
      if ((uint32_t)start.thread >= __atomic_load_n(&team->active, __ATOMIC_RELAXED)) break;
      if (now_ns() < until) continue;
      __atomic_fetch_add(&team->parked, 1, __ATOMIC_SEQ_CST);
      sleep_while(&team->generation, seen);
      __atomic_fetch_sub(&team->parked, 1, __ATOMIC_SEQ_CST);
      until = now_ns() + SPIN_NS;
    }
    if (generation == seen) continue;
    seen = generation;
    if (__atomic_load_n(&team->closing, __ATOMIC_ACQUIRE)) return nullptr;
    if (any_claim(team)) work(team, start.thread);
  }
}

}  // namespace

Team *team_open(int num_threads) {
  Team *team = static_cast<Team *>(aligned_alloc(64, sizeof(Team)));
  if (!team) return nullptr;
  *team = Team{};
  team->size = 1;
  team->active = num_threads;
  team->threads = static_cast<pthread_t *>(calloc(num_threads, sizeof(pthread_t)));
  for (int thread = 1; thread < num_threads && team->threads; ++thread) {
    Start *start = static_cast<Start *>(malloc(sizeof(Start)));
    if (!start) break;
    *start = {team, thread};
    if (pthread_create(&team->threads[thread], nullptr, run_thread, start)) {
      free(start);
      break;
    }
    team->size = thread + 1;
  }
  team->active = team->size;
  return team;
}

void team_limit(Team *team, int num_threads) {
  uint32_t before = __atomic_load_n(&team->active, __ATOMIC_RELAXED), after = num_threads;
  if (before == after) return;
  __atomic_store_n(&team->active, after, __ATOMIC_SEQ_CST);
  if (after > before) wake_all(&team->active);
}

int team_active(const Team *team) { return __atomic_load_n(&team->active, __ATOMIC_RELAXED); }

void team_close(Team *team) {
  __atomic_store_n(&team->closing, 1, __ATOMIC_RELEASE);
  team_limit(team, team->size);
  __atomic_fetch_add(&team->generation, 1, __ATOMIC_SEQ_CST);
  wake_all(&team->generation);
  for (int thread = 1; thread < team->size; ++thread) pthread_join(team->threads[thread], nullptr);
  free(team->threads);
  free(team);
}

int64_t team_waited_ns(const Team *team) { return team->waited_ns; }

int team_size(const Team *team) { return team->size; }

void team_run(Team *team, int num_parts, int grain, Part part, void *what) {
  if (num_parts <= 0) return;
  int most = (num_parts + MOST_CLAIMS - 1) / MOST_CLAIMS;
  if (grain < most) grain = most;
  int claims = (num_parts + grain - 1) / grain;
  if (claims == 1 || team_active(team) == 1) return part(what, 0, num_parts, 0);
  uint64_t number = (__atomic_load_n(&team->word, __ATOMIC_RELAXED) >> 32) + 1;
  team->jobs[number % SLOTS] = {part, what, num_parts, grain};
  __atomic_store_n(&team->finished, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&team->word, number << 32 | (uint64_t)claims << 16, __ATOMIC_RELEASE);
  __atomic_fetch_add(&team->generation, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&team->parked, __ATOMIC_SEQ_CST)) wake_all(&team->generation);
  work(team, 0);
  int64_t patience = 0, since = 0;
  while (__atomic_load_n(&team->finished, __ATOMIC_ACQUIRE) < (uint32_t)claims) {
    rest();
    if (++patience == 64) since = now_ns();
    if (patience % 4096 == 0) sched_yield();  // whoever has the claim may wait for this processor
  }
  if (since) team->waited_ns += now_ns() - since;
}
