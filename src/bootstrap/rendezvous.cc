#include "bootstrap/rendezvous.h"
