// A team of threads that share a job's parts; the caller is one of them.
#pragma once
#include <stdint.h>

// Computes the parts [first, end) of a job; scratch is the thread's own.
using Part = void (*)(void *job, int first, int end, int thread);

struct Team;

Team *team_open(int num_threads);
void team_close(Team *team);
int team_size(const Team *team);

// How many of the team work, the caller among them; the others sleep.
void team_limit(Team *team, int num_threads);
int team_active(const Team *team);

// Nanoseconds that the caller has waited for the others' last parts, since the team was opened.
int64_t team_waited_ns(const Team *team);

// Runs all parts of a job and returns when they are done. Parts are claimed, `grain` at a time, by whichever
// thread is free, so that a thread that its processor is taken from holds up no more than what it has claimed.
void team_run(Team *team, int num_parts, int grain, Part part, void *job);
