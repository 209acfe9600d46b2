// What of plotly.js the reports use. The core brings lines (scatter traces) itself.
const Plotly = require('plotly.js/lib/core');
Plotly.register([require('plotly.js/lib/bar'), require('plotly.js/lib/heatmap')]);
module.exports = Plotly;
