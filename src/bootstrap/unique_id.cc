#include "bootstrap/unique_id.h"
