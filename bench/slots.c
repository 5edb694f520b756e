/* The slots model in C: the same arrivals, service times and decisions as trimtab's loop, and nothing else.
 *
 * Nodes serve `slots` requests at a time, first come first served. Draws are trimtab's: SplitMix64's finaliser
 * over (seed, request, attempt 0, i). Completions lie in a binary heap. Returns 0, or 1 without memory. */
#include <stdint.h>
#include <stdlib.h>

typedef struct { double time_s; int64_t request; } event;
typedef struct { int64_t head, tail; int32_t in_flight, running; } node;

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t stream(uint64_t seed, uint64_t request) {
    uint64_t x = mix(seed + 0x9E3779B97F4A7C15u);
    return mix(mix(x ^ (request * 0xBF58476D1CE4E5B9u + 0x9E3779B97F4A7C15u)));
}

static double uniform(uint64_t state, uint64_t i) {
    return (double)(mix(state + (i + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

static int before(event a, event b) {
    return a.time_s < b.time_s || (a.time_s == b.time_s && a.request < b.request);
}

static void push(event *heap, int64_t *size, event e) {
    int64_t k = (*size)++;
    for (; k > 0 && before(e, heap[(k - 1) / 2]); k = (k - 1) / 2) heap[k] = heap[(k - 1) / 2];
    heap[k] = e;
}

static event pop(event *heap, int64_t *size) {
    event first = heap[0], last = heap[--*size];
    int64_t k = 0;
    for (int64_t c; (c = 2 * k + 1) < *size; k = c) {
        if (c + 1 < *size && before(heap[c + 1], heap[c])) c++;
        if (!before(heap[c], last)) break;
        heap[k] = heap[c];
    }
    heap[k] = last;
    return first;
}

/* policy 0: nodes in turn; 1: the less busy of two drawn nodes, the first one if equally busy */
static int64_t choose(int policy, int64_t r, int64_t n_nodes, uint64_t seed, const node *nodes) {
    if (policy == 0) return r % n_nodes;
    uint64_t state = stream(seed, (uint64_t)r);
    int64_t a = (int64_t)(uniform(state, 0) * (double)n_nodes);
    int64_t b = (int64_t)(uniform(state, 1) * (double)n_nodes);
    return nodes[a].in_flight <= nodes[b].in_flight ? a : b;
}

static double service_s(const double *unit_s, const double *units, int64_t j, int64_t r) {
    return unit_s[j] * units[r];
}

int simulate(int policy, uint64_t seed, int64_t n_requests, int64_t n_nodes, int32_t slots, const double *arrival_s,
             const double *units, const double *unit_s, double *finish_s, int64_t *node_idx) {
    event *heap = malloc(sizeof(event) * (size_t)(n_nodes * slots + 1));
    node *nodes = malloc(sizeof(node) * (size_t)n_nodes);
    int64_t *next = malloc(sizeof(int64_t) * (size_t)n_requests);
    int64_t size = 0, arrived = 0;
    if (!heap || !nodes || !next) {
        free(heap), free(nodes), free(next);
        return 1;
    }
    for (int64_t j = 0; j < n_nodes; j++) nodes[j] = (node){-1, -1, 0, 0};
    while (arrived < n_requests || size > 0) {
        if (arrived < n_requests && (size == 0 || arrival_s[arrived] < heap[0].time_s)) {
            int64_t r = arrived++, j = choose(policy, r, n_nodes, seed, nodes);
            node *at = &nodes[j];
            node_idx[r] = j;
            at->in_flight++;
            if (at->running < slots) {
                at->running++;
                finish_s[r] = arrival_s[r] + service_s(unit_s, units, j, r);
                push(heap, &size, (event){finish_s[r], r});
            } else {
                next[r] = -1;
                if (at->head < 0) at->head = r;
                else next[at->tail] = r;
                at->tail = r;
            }
        } else {
            event done = pop(heap, &size);
            int64_t j = node_idx[done.request], r = nodes[j].head;
            nodes[j].in_flight--;
            if (r < 0) {
                nodes[j].running--;
            } else {
                nodes[j].head = next[r];
                finish_s[r] = done.time_s + service_s(unit_s, units, j, r);
                push(heap, &size, (event){finish_s[r], r});
            }
        }
    }
    free(heap), free(nodes), free(next);
    return 0;
}
