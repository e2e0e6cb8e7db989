// See cublas_v2.h.
#pragma once
struct cusolverDnContext;
typedef cusolverDnContext* cusolverDnHandle_t;
